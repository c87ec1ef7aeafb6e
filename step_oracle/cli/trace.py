"""step-oracle trace: what a trace holds."""

from __future__ import annotations

import argparse
import fnmatch
from typing import Any

from .command import DIFFERENT, SAME, Refused, add_command, print_json, print_table

SOFTWARE = ("torch", "python", "driver", "cuda", "cublaslt", "cudnn", "nccl")
FLAGS = ("mutated", "undeclared", "created", "wrapped_number", "requires_grad", "conj", "neg")


def register(subparsers: Any) -> None:
    summary = "show and check a trace"
    parser = subparsers.add_parser("trace", help=summary, description=summary + ".",
                                   epilog="example:\n  step-oracle trace info step.trace",
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True, parser_class=type(parser))
    info = add_command(parts, "info", "what was recorded, where, and whether all of it is there", run_info,
                       example="step-oracle trace info step.trace")
    ops = add_command(parts, "ops", "list the ops", run_ops,
                      example="step-oracle trace ops step.trace --module 'h.3.*' --op 'aten.mm'")
    ops.add_argument("--op", metavar="GLOB", help="only ops of this name")
    ops.add_argument("--module", metavar="GLOB", help="only ops of this module path")
    ops.add_argument("--phase", choices=["forward", "backward", "optimizer", "recompute", "unknown"])
    show = add_command(parts, "show", "all that is known of one op", run_show,
                       example="step-oracle trace show step.trace 42")
    check = add_command(parts, "check", "read everything, kept bytes included, and compare every digest", run_check,
                        example="step-oracle trace check step.trace")
    for sub in (info, ops, show, check):
        sub.add_argument("trace", metavar="TRACE")
    show.add_argument("index", metavar="INDEX", type=int, help="as `trace ops` numbers it; -1 is the last")


def load(args: argparse.Namespace) -> Any:
    import step_oracle

    return step_oracle.load(args.trace)


def size(n: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} bytes"


def run_info(args: argparse.Namespace) -> int:
    trace = load(args)
    info = trace.info()
    if args.json:
        print_json(info)
        return SAME
    env, card = info["environment"], info["card"]
    rows: list[tuple[str, object]] = [
        ("trace", f"{trace.path}, format version {info['version']}, {size(info['bytes'])}"),
        ("complete", "yes" if info["complete"] else "no: " + info["reason"]),
        ("holds", f"{info['ops']} ops, {info['tensors']} tensors, {info['storages']} storages, {info['names']} names, "
                  f"{info['steps']} whole steps"),
        ("keeps", f"{env.keep} ({info['blobs']} blobs)"),
        ("card", f"{card['name']}: {card['sms']} multiprocessors of {card['threads_per_sm']} threads, compute "
                 f"capability {card['compute_capability']}" if card else "none"),
        ("device", env.device),
        ("software", ", ".join(f"{k} {env[k]}" for k in SOFTWARE if env[k])),
        ("host", f"{env.cpu or 'unknown CPU'}, {env.host_isa or 'ISA unknown'}, {env.threads} threads"),
        ("switches", ", ".join(f"{k}={v}" for k, v in env.switches.items()) or "none"),
        ("rank", f"{env.rank} of {env.world}"),
        ("command", " ".join(env.argv)),
    ]
    rows += [("note", text) for text in info["notes"]]
    for key, value in rows:
        if value:
            print(f"{key:10s}{value}")
    return SAME


def matches(op: dict[str, Any], args: argparse.Namespace) -> bool:
    return ((not args.op or fnmatch.fnmatch(op["op"], args.op))
            and (not args.module or fnmatch.fnmatch(op["module"], args.module))
            and (not args.phase or op["phase"] == args.phase))


def geometry(t: dict[str, Any]) -> str:
    return f"{t['dtype']}[{','.join(map(str, t['shape']))}]"


def run_ops(args: argparse.Namespace) -> int:
    trace = load(args)
    chosen = [op for op in trace.ops if matches(op, args)]
    if args.json:
        print_json({"ops": [{k: op[k] for k in ("index", "op", "phase", "module", "scope", "thread")}
                            | {"tensors": [geometry(t) for t in op.tensors]} for op in chosen],
                    "complete": trace.complete, "reason": trace.reason})
        return SAME
    rows = [[op.index, op.op, op.phase, op.module, " ".join(geometry(t) for t in op.tensors)] for op in chosen]
    print_table(rows, ["index", "op", "phase", "module", "tensors"])
    print(f"{len(chosen)} of {len(trace.ops)} ops"
          + ("" if trace.complete else f"; the trace is not complete: {trace.reason}"))
    return SAME


def run_show(args: argparse.Namespace) -> int:
    trace = load(args)
    try:
        op = trace.ops[args.index]
    except IndexError:
        raise Refused(f"'{trace.path}' has {len(trace.ops)} ops, so none with index {args.index}. "
                      f"See: step-oracle trace ops {trace.path}") from None
    if args.json:
        print_json(op)
        return SAME
    print(f"{op.index}  {op.op}  {op.phase}  {op.module}")
    for key in ("schema", "scope", "node", "error"):
        if op[key]:
            print(f"  {key}: {op[key]}")
    print(f"  arguments: {plain(op.args)}\n  returns: {plain(op.returns)}")
    for i, t in enumerate(op.tensors):
        flags = [f for f in FLAGS if t[f]]
        print(f"  tensor {i}: {geometry(t)} strides {t.strides} offset {t.offset} on {t.device}, storage {t.storage}"
              f".{t.generation} version {t.version}{', ' if flags else ''}{', '.join(flags)}")
        for side in ("before", "after"):
            if t[side + "_state"] != "absent":
                print(f"    {side:7s}{t[side] or t[side + '_state']}")
    for g in op.generators:
        print(f"  generator {g.device}: {g.before} -> {g.after}")
    if op.collective:
        print("  collective: " + ", ".join(f"{k} {v}" for k, v in op.collective.items()))
    for plan in (p for p in trace.plans if p.index == op.index):
        print(f"  plan ({plan.library}): {plan.line or plan.fields}")
    return SAME


def plain(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(plain(v) for v in value) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return repr(value)


def run_check(args: argparse.Namespace) -> int:
    trace = load(args)
    blobs = trace.check()
    nan = trace.first_nan()
    result = {"ok": trace.complete, "complete": trace.complete, "reason": trace.reason, "ops": len(trace.ops),
              "blobs": blobs, "first_nan": nan}
    if args.json:
        print_json(result)
    else:
        print(f"{trace.path}: {len(trace.ops)} ops and {blobs} blobs read, every check holds; "
              + ("complete" if trace.complete else f"not complete: {trace.reason}"))
        if nan:
            how = "enters" if nan.entered else "comes out of"
            print(f"the first NaN {how} op {nan.index} {nan.op}, tensor {nan.tensor}")
    return SAME if trace.complete else DIFFERENT
