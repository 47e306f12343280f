"""What the statuses of Workloads, ClusterQueues and Cohorts claim of quota, against what is charged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from e2e.books import Books
from e2e.lending import Lending, Quota
from e2e.reading import Amounts, Json, amount, asked, blockers, compared, ending, key_of, status, true


def claims_of_quota(books: Books) -> Iterator[str]:
    """Every claim about quota that the objects do not bear out, as a sentence."""
    return _Claims(books).all()


class _Claims:
    def __init__(self, books: Books) -> None:
        self.books, self.of = books, books.of

    def all(self) -> Iterator[str]:
        charged: dict[str, Amounts] = defaultdict(Counter)
        for key, workload in self.of["Workload"].items():
            admission = status(workload).get("admission")
            if not admission:
                if true(workload, "QuotaReserved") or true(workload, "QuotaCharged"):
                    yield f"Workload {key} is reserved without an admission"
                continue
            for assigned in admission["podSetAssignments"]:
                pod_set = next(p for p in workload["spec"]["podSets"] if p["name"] == assigned["name"])
                one = asked(pod_set["template"].get("spec") or {})
                for resource, flavor in (assigned.get("flavors") or {}).items():
                    uses = one[resource] * assigned["count"]
                    said = amount((assigned.get("resourceUsage") or {}).get(resource, 0), resource)
                    if uses != said:
                        yield f"Workload {key} says that it uses {said} {resource}, its members ask for {uses}"
                    if true(workload, "QuotaCharged"):
                        over = (status(workload).get("reclaimable") or {}).get(assigned["name"], 0)
                        charged[admission["clusterQueue"]][f"{flavor} {resource}"] += uses - one[resource] * over
        lending = self._lending(charged)
        for name, queue in self.of["ClusterQueue"].items():
            yield from self._queue(name, queue, charged[name], lending)
        for name, cohort in self.of["Cohort"].items():
            yield from self._cohort(name, cohort, lending)
        for workload in self.of["Workload"].values():
            yield from self._quota_verdict(workload, lending)

    def _lending(self, charged: Mapping[str, Amounts]) -> dict[str, Lending]:
        """By ``flavor resource``: every queue and cohort, those that have nothing of it included."""
        queues = {name: (q, q["spec"].get("cohortName")) for name, q in self.of["ClusterQueue"].items()}
        cohorts = {f"cohort {name}": (c, c["spec"].get("parentName")) for name, c in self.of["Cohort"].items()}
        every = {
            name: (_quotas(o), f"cohort {above}" if above else None) for name, (o, above) in (queues | cohorts).items()
        }
        keys = {key for quotas, _ in every.values() for key in quotas} | {k for one in charged.values() for k in one}
        return {
            key: Lending(
                {name: quotas.get(key, Quota(None))._replace(parent=above) for name, (quotas, above) in every.items()},
                {name: one[key] for name, one in charged.items()},
            )
            for key in keys
        }

    def _queue(self, name: str, queue: Json, charged: Amounts, lending: Mapping[str, Lending]) -> Iterator[str]:
        for key, quota in _quotas(queue).items():
            if charged[key] > quota.nominal and lending[key].free(name) < 0 and not true(queue, "OverQuota"):
                yield f"ClusterQueue {name}: {charged[key]} {key} are charged, the quota is {quota.nominal}"
        for flavor in status(queue).get("flavorsUsage") or []:
            for usage in flavor["resources"]:
                key = f"{flavor['name']} {usage['name']}"
                said = amount(usage.get("charged", 0), usage["name"])
                if said != charged[key]:
                    yield f"ClusterQueue {name} says that {said} {key} are charged: {charged[key]}"
                said, really = amount(usage.get("borrowed", 0), usage["name"]), lending[key].borrowed(name)
                if said != really:
                    yield f"ClusterQueue {name} says that {said} {key} are borrowed: {really}"
        admitted = sum(
            true(w, "Admitted") and not true(w, "Evicted") and not true(w, "Finished") and not ending(w)
            and (status(w).get("admission") or {}).get("clusterQueue") == name
            for w in self.of["Workload"].values()
        )  # fmt: skip
        said = status(queue).get("admittedWorkloads", 0)
        if said != admitted:
            yield f"ClusterQueue {name} says that {said} Workloads are admitted: {admitted}"

    def _cohort(self, name: str, cohort: Json, lending: Mapping[str, Lending]) -> Iterator[str]:
        me = f"cohort {name}"
        for flavor in status(cohort).get("flavorsUsage") or []:
            for usage in flavor["resources"]:
                one = lending[f"{flavor['name']} {usage['name']}"]
                truth = {"shared": one.subtree(me), "charged": one.used(me), "borrowed": one.borrowed(me)}
                said = {field: amount(usage.get(field, 0), usage["name"]) for field in truth}
                yield from compared(f"Cohort {name}: {flavor['name']} {usage['name']}", said, truth)
        for one in lending.values():
            active = next((c for c in status(cohort).get("conditions") or [] if c["type"] == "Active"), None)
            if active and (active["reason"] == "CohortCycle") != one.below_circle(me):
                yield f"Cohort {name} says {active['reason']}, its parents say otherwise"
                return

    def _quota_verdict(self, workload: Json, lending: Mapping[str, Lending]) -> Iterator[str]:
        if len(workload["spec"]["podSets"]) != 1 or true(workload, "QuotaCharged") or ending(workload):
            return
        pod_set = workload["spec"]["podSets"][0]
        one = asked(pod_set["template"].get("spec") or {})
        for b in blockers(workload):
            name, reason = b.get("queue", ""), b["reason"]
            if reason not in _OF_QUOTA or name not in self.of["ClusterQueue"]:
                continue
            key = f"{b['flavor']} {b['resource']}"
            wants = one[b["resource"]] * self.books.fewest(key_of(workload), pod_set)
            yield from compared(
                f"Workload {key_of(workload)}: {reason} of {key}", b, _quota_truth(reason, name, b, wants, lending[key])
            )
            if reason == "ExceedsMaxQuota" and wants <= lending[key].most(name):
                most = lending[key].most(name)
                yield f"Workload {key_of(workload)} is told that it can never fit: {wants} {key} of {most}"


_OF_QUOTA = ("QuotaExceeded", "BorrowingLimitReached", "CohortExhausted", "ExceedsMaxQuota")


def _quota_truth(reason: str, name: str, b: Json, wants: int, lending: Lending) -> dict[str, int]:
    """The numbers of an obstacle of quota as they ought to be."""
    if reason == "ExceedsMaxQuota":
        most = lending.most(name)
        return {"requested": wants, "limit": most, "needed": wants - most}
    free = max(0, lending.free(name))
    truth = {"requested": wants, "available": free, "needed": wants - free}
    whose = f"cohort {b['cohort']}" if b.get("cohort") else name
    match reason:
        case "QuotaExceeded":
            return {**truth, "limit": lending.quotas[name].nominal}
        case "CohortExhausted":
            return {**truth, "limit": lending.subtree(lending.root(name))}
        case _:
            limit = lending.quotas[whose].borrowing
            return {**truth, "limit": -1 if limit is None else limit}


def _quotas(holder: Json) -> dict[str, Quota]:
    """By ``flavor resource``: what a queue or cohort has, without the cohort above it."""

    def limit(r: Json, field: str) -> int | None:
        return amount(r[field], r["name"]) if field in r else None

    return {
        f"{flavor['name']} {r['name']}": Quota(
            None, amount(r["nominalQuota"], r["name"]), limit(r, "borrowingLimit"), limit(r, "lendingLimit")
        )
        for group in holder["spec"].get("resourceGroups") or []
        for flavor in group["flavors"]
        for r in flavor["resources"]
    }
