"""step-oracle recipe: a run as a document."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

from .command import DIFFERENT, REFUSED, SAME, Refused, add_command, print_json

EXAMPLES = {
    "write": "step-oracle recipe write run/ --corpus corpus.txt -o run.recipe.json",
    "check": "step-oracle recipe check run.recipe.json",
    "verify": "step-oracle recipe verify run.recipe.json --corpus corpus.txt",
    "audit": "step-oracle recipe audit run.recipe.json --corpus corpus.txt --from after-00000099.safetensors",
    "resurrect": "step-oracle recipe resurrect run.recipe.json --corpus corpus.txt --step 199 --folder kept -o 199.st",
    "attest": "step-oracle recipe attest run.recipe.json --corpus corpus.txt --key key.pem -o run.intoto.json",
    "estimate": "step-oracle recipe estimate run.recipe.json --corpus corpus.txt",
}
SUMMARIES = {
    "write": "make the recipe of a recorded run",
    "check": "all that can be checked without computing: form, digests, units, impossible values",
    "verify": "walk the run from its start and compare every promise",
    "audit": "walk from checkpoints that promises name to the next ones",
    "resurrect": "compute a deleted checkpoint again",
    "attest": "verify, and state the result as an in-toto statement, signed where a key is given",
    "estimate": "time, memory and disk on this machine, measured by a few steps",
}


def register(subparsers: Any) -> None:
    summary = "runs as documents: write, verify, audit, resurrect"
    parser = subparsers.add_parser(
        "recipe",
        help=summary,
        description=summary + ".",
        epilog=f"example:\n  {EXAMPLES['verify']}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True, parser_class=type(parser))
    runs = {
        "write": run_write,
        "check": run_check,
        "verify": run_verify,
        "audit": run_audit,
        "resurrect": run_resurrect,
        "attest": run_attest,
        "estimate": run_estimate,
    }
    made = {name: add_command(parts, name, SUMMARIES[name], run, example=EXAMPLES[name]) for name, run in runs.items()}
    for name, sub in made.items():
        sub.add_argument("recipe", metavar="RUN|TRACE" if name == "write" else "RECIPE")
        if name != "check":
            sub.add_argument("--corpus", metavar="FILE", help="the file that the run's batches are cut from")
            sub.add_argument("--threads", metavar="N", type=int, help="threads of the kernels; they decide no byte")
            sub.add_argument("--quiet", action="store_true", help="no progress bar")
        if name in ("verify", "resurrect", "attest", "estimate"):
            sub.add_argument("--init", metavar="FILE", help="the initial state, where the recipe names it by digest")
        if name in ("verify", "attest"):
            sub.add_argument("--until", metavar="STEP", type=int, help="stop after this step")
            goes_on = "; an interrupted walk goes on from the last" if name == "verify" else ", a folder without any"
            sub.add_argument("--folder", metavar="DIR", help="write checkpoints there" + goes_on)
    for name in ("write", "resurrect", "attest"):
        made[name].add_argument("-o", "--out", metavar="FILE", required=name != "attest")
    made["write"].add_argument(
        "--init", metavar="FILE", help="of a trace: where the state that its step began from is written "
        "(default: OUT with .init.safetensors); `verify` takes it as --init"
    )
    made["write"].add_argument("--card", metavar="NAME", help="where the recordings' card has no profile of its own")
    made["write"].add_argument(
        "--plans", metavar="FILE", help="the card's plan table, or \"pinned\"; without one, the one that comes along"
    )
    made["write"].add_argument(
        "--choices",
        metavar="FILE",
        help="what kernels left open in every step; without it, what replays of the recorded steps find",
    )
    for name in ("verify", "estimate"):
        made[name].add_argument(
            "--keep-every", metavar="N", type=int, help="a checkpoint every N steps; at each promise without it"
        )
    audit = made["audit"]
    audit.add_argument(
        "--from", dest="checkpoints", metavar="FILE", nargs="+", required=True, help="checkpoints to start from"
    )
    audit.add_argument("--steps", metavar="N", type=int, help="steps to walk; to the next promise without it")
    audit.add_argument("--jobs", metavar="N", type=int, default=1, help="audits at a time")
    audit.add_argument(
        "--engine", choices=["joblib", "ray", "dask"], help="what spreads the audits (default: joblib for --jobs)"
    )
    made["resurrect"].add_argument("--step", metavar="STEP", type=int, required=True, help="the state after this step")
    made["resurrect"].add_argument("--from", dest="kept", metavar="FILE", help="a kept checkpoint from before it")
    made["resurrect"].add_argument("--folder", metavar="DIR", help="a folder of checkpoints with its index")
    made["attest"].add_argument("--key", metavar="PEM", help="an ed25519 private key")
    made["estimate"].add_argument("--steps", metavar="N", type=int, default=3, help="steps to measure (default: 3)")


def _threads(args: argparse.Namespace) -> int:
    from step_oracle import device

    if args.threads is not None:
        if not 1 <= args.threads <= 4096:
            raise Refused(f"--threads {args.threads}: give a number from 1 to 4096")
        device.extension().set_num_threads(args.threads)
    return int(device.extension().isas()["threads"])


def _walked(args: argparse.Namespace, title: str, walk: Callable[[Any], Any]) -> Any:
    """Runs ``walk(progress)`` with a bar: steps, steps a second, time left."""
    from .progress import step_bar

    _threads(args)
    with step_bar(title, quiet=args.quiet or args.json) as advance:
        return walk(advance)


def run_write(args: argparse.Namespace) -> int:
    from step_oracle.recipe import checkpoints, from_trace, writer

    _threads(args)
    checkpoints.check_target(args.out, args.recipe, args.corpus, args.plans, args.choices)
    init = None
    if os.path.isdir(args.recipe):
        if args.corpus is None:
            raise Refused(f"{args.recipe} is a run: give the file that its batches were cut from with --corpus")
        if args.init is not None:
            raise Refused("--init is of a lone trace; what a run began from is written into its folder")
        text = writer.write(args.recipe, args.corpus, card=args.card, plans=args.plans, choices=args.choices)
    else:
        if args.corpus is not None:
            raise Refused(f"{args.recipe} is no folder of a run, and a recipe of one trace has no corpus: leave it out")
        init = args.init or f"{args.out}.init.safetensors"
        checkpoints.check_target(init, args.out, args.recipe, args.plans, args.choices)
        text = from_trace.write(args.recipe, init, card=args.card, plans=args.plans, choices=args.choices)
    _put(args.out, text)
    value = {"ok": True, "out": args.out, "bytes": len(text) + 1, "recipe": _opened(text).digest, "init": init}
    if args.json:
        print_json(value)
    else:
        print(f"{args.out}: {value['bytes']} bytes, {_holds(_opened(text))}; digest {value['recipe']}")
        if init:
            print(f"{init}: the state before the step; verify with --init {init}")
    return SAME


def _opened(text: str) -> Any:
    from step_oracle.recipe import document

    return document.Recipe(text)


def _holds(recipe: Any) -> str:
    return (
        f"{recipe.steps} steps on {recipe.card}, {len(recipe.promises)} promises, "
        f"{len(recipe.programs)} program{'s' if len(recipe.programs) > 1 else ''}"
    )


def _put(path: str, text: str) -> None:
    partial = pathlib.Path(path + ".partial")
    partial.write_text(text + "\n")
    os.replace(partial, path)


def run_check(args: argparse.Namespace) -> int:
    from step_oracle.recipe import document

    recipe = document.load(args.recipe)
    if args.json:
        print_json(
            {
                "ok": True,
                "recipe": recipe.digest,
                "steps": recipe.steps,
                "promises": len(recipe.promises),
                "card": recipe.card,
                "bytes": pathlib.Path(args.recipe).stat().st_size,
            }
        )
    else:
        print(
            f"{args.recipe}: {_holds(recipe)}; every static check holds. "
            "Nothing was computed: `step-oracle recipe verify` does"
        )
    return SAME


def describe(verdict: Any, what: str) -> None:
    walked = verdict.last - verdict.first + 1
    rate = walked / max(verdict.seconds - verdict.load_seconds, 1e-9)
    if verdict.note:
        print(verdict.note)
    if verdict.resumed_from is not None:
        print(f"went on from the checkpoint after step {verdict.resumed_from}")
    print(
        f"{what}: steps {verdict.first} to {verdict.last}, {verdict.losses} losses equal, {verdict.seconds:.1f} s "
        f"({rate:.2f} steps/s, {verdict.load_seconds:.1f} s to begin)"
    )
    if verdict.first_failed:
        failed = verdict.first_failed
        print(f"first difference: {failed}; loss of that step: {failed.loss}")
    print(f"{verdict.kept}/{verdict.total} promises: " + ("verified" if verdict.ok else "NOT verified"))


def run_verify(args: argparse.Namespace) -> int:
    from step_oracle.recipe import verification

    if args.keep_every is not None and args.keep_every < 1:
        raise Refused(f"--keep-every {args.keep_every}: give a number of steps")
    verdict = _walked(
        args,
        "verify",
        lambda p: verification.verify(
            args.recipe,
            args.corpus,
            until=args.until,
            init=args.init,
            folder=args.folder,
            keep_every=args.keep_every,
            progress=p,
        ),
    )
    if args.json:
        print_json(verdict.to_json())
    else:
        describe(verdict, "verify")
    return SAME if verdict.ok else DIFFERENT


def run_audit(args: argparse.Namespace) -> int:
    from step_oracle.recipe import verification

    if args.jobs < 1:
        raise Refused(f"--jobs {args.jobs}: give a number of audits at a time")
    if len(args.checkpoints) == 1 and args.engine is None:
        verdict = _walked(
            args,
            "audit",
            lambda p: verification.audit(args.recipe, args.corpus, args.checkpoints[0], steps=args.steps, progress=p),
        )
        if args.json:
            print_json(verdict.to_json())
        else:
            describe(verdict, "audit")
        return SAME if verdict.ok else DIFFERENT
    done = verification.audits(
        os.path.abspath(args.recipe),
        args.corpus and os.path.abspath(args.corpus),
        [os.path.abspath(c) for c in args.checkpoints],
        steps=args.steps,
        jobs=args.jobs,
        engine=args.engine or "joblib",
        threads=_threads(args),
    )
    return _report_audits(args, done)


def _report_audits(args: argparse.Namespace, done: list[dict[str, Any]]) -> int:
    kept = sum(d["verdict"]["promises"]["kept"] for d in done if "verdict" in d)
    total = sum(d["verdict"]["promises"]["total"] for d in done if "verdict" in d)
    refused = [d for d in done if "refused" in d]
    ok = not refused and all(d["verdict"]["ok"] for d in done)
    if args.json:
        print_json({"ok": ok, "promises": {"kept": kept, "total": total}, "audits": done, "refused": len(refused)})
    else:
        for d in done:
            name = pathlib.Path(d["checkpoint"]).name
            if "refused" in d:
                print(f"{name}: refused: {d['refused']}")
            else:
                v = d["verdict"]
                print(
                    f"{name}: steps {v['first_step']} to {v['last_step']}, "
                    f"{v['promises']['kept']}/{v['promises']['total']} promises, "
                    f"{v['seconds']:.1f} s"
                )
        print(f"{kept}/{total} promises in {len(done)} audits: " + ("verified" if ok else "NOT verified"))
    if refused:
        return REFUSED
    return SAME if ok else DIFFERENT


def run_resurrect(args: argparse.Namespace) -> int:
    from step_oracle.recipe import checkpoints, verification

    checkpoints.check_target(args.out, args.recipe, args.corpus, args.init, args.kept)
    found = _walked(
        args,
        "resurrect",
        lambda p: verification.resurrect(
            args.recipe,
            args.corpus,
            args.step,
            args.out,
            kept=args.kept,
            init=args.init,
            folder=args.folder,
            progress=p,
        ),
    )
    if args.json:
        print_json(found)
        return SAME if found["ok"] else DIFFERENT
    if found["note"]:
        print(found["note"])
    if found["ok"]:
        print(
            f"{found['out']}: the state after step {found['step']}, {found['state']}, "
            f"as {found['named_by']} names it; walked from "
            + (f"the state after step {found['from_step']}" if found["from_step"] >= 0 else "the initial state")
            + f" in {found['seconds']:.1f} s"
        )
    else:
        failed = found["first_failed"]
        print(
            f"not written: after step {failed['step']} the {failed['what']} is {failed['actual']}, "
            f"expected {failed['expected']}"
        )
    return SAME if found["ok"] else DIFFERENT


def run_attest(args: argparse.Namespace) -> int:
    from step_oracle.recipe import attest, checkpoints, document, verification

    recipe = document.load(args.recipe)
    if args.out:
        checkpoints.check_target(args.out, args.recipe, args.corpus, args.init, args.key)
    if args.folder and checkpoints.Folder(args.folder, recipe.digest).kept():
        raise Refused(
            f"{args.folder} holds checkpoints, and an attestation is of a walk of all steps in one process: give an "
            "empty folder, or leave --folder out"
        )
    verdict = _walked(
        args,
        "verify",
        lambda p: verification.verify(
            recipe, args.corpus, until=args.until, init=args.init, folder=args.folder, progress=p
        ),
    )
    if not verdict.ok:
        if args.json:
            print_json(verdict.to_json())
        else:
            describe(verdict, "attest")
        return DIFFERENT
    value = attest.statement(recipe, verdict, args.corpus)
    if args.key:
        value = attest.sign(value, args.key)
    text = json.dumps(value, indent=None if args.key else 1, sort_keys=True)
    if args.out:
        _put(args.out, text)
    if args.json or not args.out:
        print(text)
    else:
        print(
            f"{args.out}: {verdict.kept}/{verdict.total} promises, "
            + ("signed" if args.key else "not signed (give --key)")
        )
    return SAME


def run_estimate(args: argparse.Namespace) -> int:
    from step_oracle.recipe import estimate

    e = _walked(
        args,
        "estimate",
        lambda p: estimate.estimate(
            args.recipe, args.corpus, steps=args.steps, init=args.init, keep_every=args.keep_every, progress=p
        ),
    )
    if args.json:
        print_json(e)
        return SAME
    audit, keep = e["audit"], e["keep"]
    print(
        f"a step: {e['seconds_a_step']:.2f} s; state: {e['state_bytes'] / 1e6:.1f} MB; memory: "
        f"{e['peak_memory_bytes'] / 1e6:.0f} MB at most in {e['measured_steps']} steps"
    )
    print(f"verify: {e['verify']['steps']} steps, {e['verify']['seconds']:.0f} s")
    print(
        f"audit: one step {audit['of_one_step_seconds']:.1f} s, "
        f"to the next promise {audit['of_one_promise_seconds']:.0f} s at most"
    )
    print(
        f"keep {'each promise' if keep['every'] is None else 'every ' + str(keep['every'])}: "
        f"{keep['checkpoints']} checkpoints, "
        f"{keep['disk_bytes'] / 1e6:.1f} MB; a resurrection {keep['resurrect_seconds_at_most']:.0f} s at most"
    )
    return SAME
