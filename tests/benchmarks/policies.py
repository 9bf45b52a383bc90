"""The policies' exactness at many samples: every policy, auto and cascade with each exact rule, in several processes.

`specview exactness --policies` does the same in one. Of 400,000 samples a case takes some minutes.

    python -m tests.benchmarks.policies --samples 400000 --jobs 2 --json policies.json
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from specview.lab.policy_exactness import PoliciesResult, cases, policies_document, run_policies


def one(case: tuple[str, str], samples: int, seed: int) -> PoliciesResult:
    """One case, with numbers of its own."""
    return run_policies(samples=samples, seed=seed + 1000 * cases().index(case), chosen=[case])


def main() -> None:
    """Print each case as it ends, and the verdict."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: PoliciesResult | None = None
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(one, case, asked.samples, asked.seed) for case in cases()]):
            result = done.result()
            (case,) = result.cases
            print(
                f"{case.rule:10} {case.policy:10} {case.samples:,} TV {case.tv:.5f} (line {case.line:.5f}) p {case.chi2_p} "
                f"behind unjudged {case.behind:,} p {case.behind_p} tok/pass {case.tokens_per_pass:.3f}: {case.words}",
                flush=True,
            )
            if found is None:
                found = result
            else:
                found.cases.append(case)
                found.seconds += result.seconds
            if asked.json is not None:
                asked.json.write_text(json.dumps(policies_document(found), indent=1), encoding="utf-8")
    if found is not None:
        print(found.sentence)


if __name__ == "__main__":
    main()
