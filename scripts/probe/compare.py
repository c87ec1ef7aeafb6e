"""What a card's output says of this repository's claims: confirmed, contradicted, open (nobody claimed), NA."""

from __future__ import annotations

import json
import pathlib
import tempfile
from dataclasses import dataclass, field
from typing import Any

from . import arith, attention, products, vectors
from .context import ROOT, Context
from .output import Output, OutputError

# first words of a vector's name -> the family of step_oracle/data/evidence.json
FAMILIES = {
    "foreach_norm": "reduce",
    "foreach": "pointwise",
    "fused": "optimizer",
    "softmax": "softmax",
    "log_softmax": "softmax",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "nll_loss": "loss",
    "embedding": "indexing",
    "index_put": "indexing",
    "cumsum": "reduce",
    "sum": "reduce",
    "mean": "reduce",
    "norm2": "reduce",
    "uniform": "random",
    "bernoulli": "random",
    "dropout": "random",
}


def family_of(vector: str) -> str:
    return next((f for prefix, f in FAMILIES.items() if vector.startswith(prefix)), "pointwise")


@dataclass
class Finding:
    section: str
    unit: str
    kind: str  # "confirmed", "contradicted", "open", "na"
    text: str = ""
    family: str = ""
    claim: dict[str, Any] = field(
        default_factory=dict
    )  # what must become true: see tests/policy/test_contradictions.py

    def contradiction(self, record: str, output: Output) -> dict[str, Any]:
        return {
            "record": record,
            "card": output.manifest["card"]["name"],
            "compute_capability": output.manifest["card"]["compute_capability"],
            "section": self.section,
            "unit": self.unit,
            "family": self.family,
            "text": self.text,
            "claim": self.claim,
        }


def all_findings(output: Output, full: bool) -> list[Finding]:
    found: list[Finding] = []
    readers = {
        "vectors": of_vectors,
        "arith": lambda o: of_arith(o, full),
        "products": of_products,
        "attention": of_attention,
        "steps": of_steps,
    }
    for name, reader in readers.items():
        if name not in output.sections:
            continue
        try:
            found += reader(output)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise OutputError(
                f"{output.folder / name}.json.xz does not say what a {name} section says ({type(e).__name__}: {e})"
            ) from None
    return found


def of_vectors(output: Output) -> list[Finding]:
    found = []
    for name, row in output.sections["vectors"].items():
        family = family_of(name)
        if "na" in row or "error" in row:
            found.append(
                Finding("vectors", name, "na" if "na" in row else "open", row.get("na") or row["error"], family)
            )
            continue
        stored = expected(name)
        bad = {k: r for k, r in row["outputs"].items() if r["digest"] != stored.get(f"out_{k}")}
        if not bad:
            found.append(Finding("vectors", name, "confirmed", "", family))
            continue
        key, out = next(iter(bad.items()))
        first = (out.get("first") or [["?", "?", "?"]])[0]
        text = f"output {key}, element {first[0]}: the card has {first[1]}, the vector {first[2]}"
        claim = {"vector": name, "digests": {f"out_{k}": r["digest"] for k, r in bad.items()}}
        found.append(Finding("vectors", name, "contradicted", text, family, claim))
    return found


def expected(name: str) -> dict[str, str]:
    """Digests of the vector's own outputs."""
    from .context import host_digest

    if not (vectors.FOLDER / f"{name}.safetensors.zst").exists():
        raise OutputError(f"the output has the vector {name!r}, which this tree does not have")
    return {k: host_digest(t) for k, t in vectors.load(name)[1].items() if k.startswith("out_")}


def of_arith(output: Output, full: bool) -> list[Finding]:
    found = []
    for name, row in output.sections["arith"].items():
        if "error" in row or name not in arith.FUNCTIONS:
            found.append(Finding("arith", name, "open", row.get("error", "not a function of this tree"), "arith"))
        elif not arith.FUNCTIONS[name][1]:
            found.append(
                Finding("arith", name, "open", "no model claims it: the card's table is in the record", "arith")
            )
        else:
            found.append(of_function(name, row, full and not output.dry))
    return found


def of_function(name: str, row: dict[str, Any], full: bool) -> Finding:
    import numpy

    per, step, count = row["per_chunk"], row["step"], row["count"]
    if len(row["chunks"]) != arith.CHUNKS or not 0 < per <= 4096 or not 0 < step * per <= arith.CHUNK:
        raise ValueError(f"{name}: {len(row['chunks'])} chunks, {per} samples each")
    got = numpy.frombuffer(arith.unpack(row["samples"]), "<u4").reshape(arith.CHUNKS, per)
    for c in range(arith.CHUNKS):
        want = numpy.frombuffer(arith.model(name, c * arith.CHUNK, per, step), "<u4")
        bad = numpy.flatnonzero(canonical(got[c]) != canonical(want))
        if len(bad):
            x, y = c * arith.CHUNK + int(bad[0]) * step, int(got[c][bad[0]])
            text = f"input {x:#010x}: the card has {y:#010x}, the model {int(want[bad[0]]):#010x}"
            return Finding("arith", name, "contradicted", text, "arith", {"function": name, "input": x, "word": y})
    if not full:
        return Finding("arith", name, "confirmed", f"{arith.CHUNKS * per} sampled words", "arith")
    from step_oracle import _record

    for c, digest in enumerate(row["chunks"]):
        words = canonical(numpy.frombuffer(arith.model(name, c * arith.CHUNK, count), "<u4"))
        if _record.blake3(words.tobytes()) != digest:
            return Finding(
                "arith",
                name,
                "contradicted",
                f"the inputs {c:#04x}000000 and on have another digest",
                "arith",
                {"function": name, "chunk": c, "digest": digest},
            )
    return Finding("arith", name, "confirmed", "all 2^32 inputs", "arith", {"whole": True})


def canonical(words: Any) -> Any:
    import numpy

    return numpy.where((words & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, words).astype("<u4")


def of_products(output: Output) -> list[Finding]:
    """Small products are computed on the virtual card: equal bytes confirm. One whose plan is not known is open."""
    import torch

    import step_oracle
    from step_oracle import plans

    from .context import host_digest

    plans.quiet()
    ctx = Context(True, pathlib.Path())
    card = next((c.name for c in step_oracle.cards.cards() if same_card(c, output.manifest["card"])), None)
    if card is None:
        return [
            Finding("products", u, "open", "the card is not in docs/cards.md", "gemm")
            for u in output.sections["products"]
        ]
    found = []
    with step_oracle.card(card):
        for unit, rows in output.sections["products"].items():
            if "error" in rows:
                found.append(Finding("products", unit, "open", rows["error"], "gemm"))
                continue
            name = unit.split("/")[0]
            for row in rows["products"]:
                label = f"{name} {row['m']}x{row['n']}x{row['k']} {row['layout']}"
                if row["m"] * row["n"] * row["k"] > 1 << 22 or name == "tf32":
                    found.append(
                        Finding("products", label, "open", "not computed at import: step-oracle plan fit does", "gemm")
                    )
                    continue
                a, b, _ = products.operands(ctx, name, row["index"], row["m"], row["n"], row["k"])
                equal = host_digest(torch.mm(a, b)) == row["digest"]
                found.append(
                    Finding(
                        "products",
                        label,
                        "confirmed" if equal else "open",
                        "" if equal else "another plan than the assumed one",
                        "gemm",
                    )
                )
    return found


def same_card(card: Any, measured: dict[str, Any]) -> bool:
    if measured.get("virtual"):
        return bool(card.name == measured["name"])
    return (
        str(card.compute_capability) == measured["compute_capability"]
        and card.sms == measured.get("sms")
        and card.threads_per_sm == measured.get("threads_per_sm")
    )


def of_attention(output: Output) -> list[Finding]:
    found, cases = [], attention.cases()
    for unit, row in output.sections["attention"].items():
        if "na" in row or "error" in row:
            found.append(
                Finding("attention", unit, "na" if "na" in row else "open", row.get("na") or row["error"], "attention")
            )
            continue
        if unit not in cases:
            raise OutputError(f"the output has the attention case {unit!r}, which this tree does not have")
        arrays = cases[unit]["arrays"]
        bad = {k: r["sha256"] for k, r in row["outputs"].items() if arrays[k]["sha256"] != r["sha256"]}
        kind = "confirmed" if not bad else "open" if attention.may_split(cases[unit]) else "contradicted"
        found.append(
            Finding(
                "attention", unit, kind, ", ".join(bad), "attention", {"attention": unit, "sha256": bad} if bad else {}
            )
        )
    return found


def of_steps(output: Output) -> list[Finding]:
    import step_oracle

    found, traces = [], output.traces()
    for unit, row in output.sections["steps"].items():
        if "error" in row:
            found.append(Finding("steps", unit, "open", row["error"], "steps"))
            continue
        for listed in row["traces"]:
            data = traces.get(listed["name"])
            if data is None:
                found.append(Finding("steps", listed["name"], "open", "left out: too large", "steps"))
                continue
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / listed["name"]
                path.write_bytes(data)
                try:
                    trace = step_oracle.load(path)
                except (ValueError, RuntimeError) as e:
                    raise OutputError(f"{listed['name']} in the traces cannot be read: {e}") from None
                if not trace.complete or len(trace.ops) != listed["ops"]:
                    raise OutputError(
                        f"{listed['name']} is not whole: {trace.reason or 'other ops than the section says'}"
                    )
            found.append(Finding("steps", listed["name"], "open", "to be replayed: step-oracle replay", "steps"))
    return found


# --- what is written ------------------------------------------------------------------------------------------------


def write_plans(output: Output, folder: pathlib.Path) -> list[str]:
    """The products with what cuBLASLt's heuristic said; its log; the plan table that the log decides."""
    import step_oracle
    from step_oracle import plan_log

    sections = output.sections.get("products", {})
    rows = [{"setting": u.split("/")[0], **r} for u, part in sections.items() for r in part.get("products", [])]
    said, lines = [], [line for row in rows for line in row.get("lines", [])]
    if any(row.get("heuristic") for row in rows):
        short = [{k: v for k, v in row.items() if k != "lines"} for row in rows]
        (folder / "heuristics.json").write_text("[\n" + ",\n".join(json.dumps(r) for r in short) + "\n]\n")
        said.append(f"heuristics.json ({len(rows)} rows)")
    if not lines:
        return said
    log = folder / "lt.log"
    log.write_text("\n".join(lines) + "\n")
    said.append(f"lt.log ({len(lines)} lines)")
    card = next((c for c in step_oracle.cards.cards() if same_card(c, output.manifest["card"])), None)
    if card is None:
        return [*said, "no plan table: the card is not in docs/cards.md"]
    try:
        plans = plan_log.read(log, card, f"cuBLASLt {output.manifest['versions'].get('cublaslt', '')}")
    except ValueError as e:
        return [*said, f"no plan table: {e}"]
    (folder / "plan-table.json").write_text(plans.table)
    return [
        *said,
        f"plan-table.json ({len(plans.rows)} kinds decided, {len(plans.open)} open, {len(plans.unknown)} unknown)",
    ]


def costs(output: Output) -> dict[str, Any]:
    return dict(output.sections.get("costs", {}))


def evidence_rows(output: Output, findings: list[Finding], record: str) -> list[dict[str, Any]]:
    """Grade "card" for a family whose every reachable vector the card has confirmed. A dry run has none."""
    if output.dry:
        return []
    rows = []
    card, cc = output.manifest["card"]["name"], output.manifest["card"]["compute_capability"]
    for section in ("vectors", "arith", "attention"):
        for family in dict.fromkeys(f.family for f in findings if f.section == section):
            mine = [f for f in findings if f.section == section and f.family == family]
            good = [f for f in mine if f.kind == "confirmed" and (section != "arith" or f.claim.get("whole"))]
            if not good or any(f.kind == "contradicted" for f in mine):
                continue
            what = f"{len(good)} of {len(mine)} {section} on {card}"
            rows.append(
                {
                    "family": family,
                    "what": what,
                    "dtype": "as measured",
                    "cards": [cc],
                    "grade": "card",
                    "witness": f"scripts/card_probe, tests/data/card/{record}",
                    "test": "card",
                }
            )
    return rows


def load_contradictions(root: pathlib.Path = ROOT) -> list[dict[str, Any]]:
    path = root / "step_oracle/data/contradictions.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def is_met(claim: dict[str, Any]) -> bool:
    """The repository says now what the card said."""
    if "vector" in claim:
        own = expected(claim["vector"])
        return all(own.get(k) == d for k, d in claim["digests"].items())
    if "attention" in claim:
        case = attention.cases().get(claim["attention"])
        return case is not None and all(case["arrays"][k]["sha256"] == d for k, d in claim["sha256"].items())
    if "word" in claim:
        return int.from_bytes(arith.model(claim["function"], claim["input"], 1), "little") == claim["word"]
    if "chunk" in claim:
        from step_oracle import _record

        words = arith.model(claim["function"], claim["chunk"] * arith.CHUNK, arith.CHUNK)
        return bool(_record.blake3(words) == claim["digest"])
    return False
