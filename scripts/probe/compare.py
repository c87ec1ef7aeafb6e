"""What a card's output says of this repository's claims: confirmed, contradicted, open (nobody claimed), NA."""

from __future__ import annotations

import json
import pathlib
import tempfile
from dataclasses import dataclass, field
from typing import Any

from . import arith, attention, compiled, products, vectors
from .case import FAMILIES, base_of
from .context import ROOT, Context
from .output import Output, OutputError


def family_of(vector: str) -> str:
    """Of the evidence table."""
    if vector.startswith(compiled.PREFIX):
        return compiled.family_of(vector)
    return FAMILIES[base_of(vector.partition(".")[0])]


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
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
            raise OutputError(
                f"{output.folder / name}.json.xz does not say what a {name} section says ({type(e).__name__}: {e})"
            ) from None
    return found


def own_vectors() -> dict[str, set[str] | None]:
    """Every vector of this tree: the outputs that its op gives here, and None where no op reaches it.

    The virtual card is asked, and not the output: what a card must confirm is not for its output to say."""
    import step_oracle
    from step_oracle import plans

    plans.quiet()
    ctx, found = Context(True, pathlib.Path()), {}
    with step_oracle.card("h100-pcie"):
        for name in vectors.all_names():
            try:
                row = vectors.run(ctx, name)
            except (RuntimeError, LookupError, ValueError, TypeError):  # refused here: all of the file's, then
                row = {"outputs": [k.removeprefix("out_") for k in expected(name) if "@" not in k]}
            found[name] = None if "na" in row else set(row["outputs"])
    return found


def of_vectors(output: Output) -> list[Finding]:
    found, own, rows = [], own_vectors(), output.sections["vectors"]
    major, minor = map(int, output.manifest["card"]["compute_capability"].split("."))
    capability = major, minor
    for name in rows:
        if name not in own and name not in compiled.rows():
            raise OutputError(f"the output has the vector {name!r}, which this tree does not have")
    for name, outputs in own.items():
        row, family = rows.get(name), family_of(name)
        if row is None:
            if not output.dry and outputs is not None:
                found.append(Finding("vectors", name, "open", "not in the output", family))
        elif "error" in row:
            found.append(Finding("vectors", name, "open", row["error"], family))
        elif outputs is None or "na" in row:
            kind = "na" if outputs is None else "open"
            found.append(Finding("vectors", name, kind, row.get("na", "no op of this tree reaches it"), family))
        else:
            found.append(of_vector(name, row, outputs, family, capability))
    return found + [f for n in compiled.rows() for f in of_compiled(n, rows.get(n), capability, output.dry)]


def of_compiled(name: str, row: dict[str, Any] | None, capability: tuple[int, int], dry: bool) -> list[Finding]:
    """Of a row of tests/data/compiled; none where a dry run left it out."""
    family, stored = family_of(name), compiled.expected(name)
    if row is None and dry:
        return []
    if why := compiled.unreachable(name, capability):
        return [Finding("vectors", name, "na", why, family)]
    if row is None:
        return [Finding("vectors", name, "open", "not in the output", family)]
    if "outputs" not in row:
        why = row.get("error") or row.get("na") or "no digests of its kind"
        return [Finding("vectors", name, "open", why, family)]
    for k in row["outputs"]:
        if k not in stored:
            raise OutputError(f"the output has {k!r} of the row {name!r}, which the row does not have")
    bad = {k: r["sha256"] for k, r in row["outputs"].items() if r["sha256"] != stored[k]}
    if bad:
        k = next(iter(bad))
        text = f"output {k}: the card has {row['outputs'][k].get('few', [])}, the row {stored_words(name, k)}"
        return [Finding("vectors", name, "contradicted", text, family, {"compiled": name, "sha256": bad})]
    missing = sorted(set(stored) - set(row["outputs"]))
    if missing:
        return [Finding("vectors", name, "open", f"without its output {missing[0]}", family)]
    return [Finding("vectors", name, "confirmed", "", family)]


def stored_words(name: str, output: str) -> list[str]:
    return list(compiled.rows()[name]["outputs"][output]["few"])


def of_vector(name: str, row: dict[str, Any], outputs: set[str], family: str, capability: tuple[int, int]) -> Finding:
    stored = expected(name)

    def key(output: str) -> str:
        return vectors.stored_name(output, stored, capability)

    for k in row["outputs"]:
        if key(k) not in stored:
            raise OutputError(f"the output has {k!r} of the vector {name!r}, which the vector does not have")
    bad = {k: r for k, r in row["outputs"].items() if r["digest"] != stored[key(k)]}
    if bad:
        k, out = next(iter(bad.items()))
        first = (out.get("first") or [["?", "?", "?"]])[0]
        text = f"output {k}, element {first[0]}: the card has {first[1]}, the vector {first[2]}"
        claim = {"vector": name, "digests": {key(n): r["digest"] for n, r in bad.items()}}
        return Finding("vectors", name, "contradicted", text, family, claim)
    missing = sorted(outputs - set(row["outputs"]))
    if missing:
        return Finding("vectors", name, "open", f"without its output {missing[0]}", family)
    return Finding("vectors", name, "confirmed", "", family)


def expected(name: str) -> dict[str, str]:
    """Digests of the vector's own outputs."""
    from .context import host_digest

    if not (vectors.FOLDER / f"{name}.safetensors.zst").exists():
        raise OutputError(f"the output has the vector {name!r}, which this tree does not have")
    return {k: host_digest(t) for k, t in vectors.load(name)[1].items() if k.startswith("out_")}


def of_arith(output: Output, full: bool) -> list[Finding]:
    found, rows = [], output.sections["arith"]
    for name in rows:
        if name not in arith.FUNCTIONS:
            raise OutputError(f"the output has the function {name!r}, which this tree does not have")
    for name, (_, modelled) in arith.FUNCTIONS.items():
        row = rows.get(name)
        if row is None:
            if modelled and not output.dry:
                found.append(Finding("arith", name, "open", "not in the output", "arith"))
        elif "error" in row:
            found.append(Finding("arith", name, "open" if modelled else "na", row["error"], "arith"))
        elif not modelled:
            found.append(Finding("arith", name, "na", "no model claims it: the card's table is in the record", "arith"))
        else:
            found.append(of_function(name, row, full and not output.dry))
    return found


def of_function(name: str, row: dict[str, Any], full: bool) -> Finding:
    import numpy

    per, step, count = row["per_chunk"], row["step"], row["count"]
    if len(row["chunks"]) != arith.CHUNKS or not 0 < per <= 4096 or not 0 < step * per <= arith.CHUNK:
        raise ValueError(f"{name}: {len(row['chunks'])} chunks, {per} samples each, {step} apart")
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
    if count != arith.CHUNK:  # whatever its digests say, they are of a part
        return Finding("arith", name, "open", f"{count} inputs of a chunk's {arith.CHUNK} are no whole", "arith")
    from step_oracle import _record

    for c, digest in enumerate(row["chunks"]):
        words = canonical(numpy.frombuffer(arith.model(name, c * arith.CHUNK, arith.CHUNK), "<u4"))
        if _record.blake3(words.tobytes()) != digest:
            text = f"the inputs {c:#04x}000000 and on have another digest"
            claim = {"function": name, "chunk": c, "digest": digest}
            return Finding("arith", name, "contradicted", text, "arith", claim)
    return Finding("arith", name, "confirmed", "all 2^32 inputs", "arith", {"whole": True})


def canonical(words: Any) -> Any:
    import numpy

    return numpy.where((words & 0x7FFFFFFF) > 0x7F800000, 0x7FFFFFFF, words).astype("<u4")


def check_products(output: Output) -> None:
    """The operands are made from index, shape and layout: these must be the probe's."""
    for unit, part in output.sections["products"].items():
        name, _, number = unit.partition("/")
        if name not in products.SETTINGS or not number.isdecimal():
            raise OutputError(f"the output has the part {unit!r} of the products, which this tree does not have")
        for row in part.get("products", []):
            own = products.LAYOUTS[row["index"] % len(products.LAYOUTS)]
            if row["layout"] != own:
                raise OutputError(f"{unit}: product {row['index']} is {own} here, and {row['layout']} in the output")


def of_products(output: Output) -> list[Finding]:
    """Small products are computed on the virtual card: equal bytes confirm. One whose plan is not known is open."""
    import torch

    import step_oracle
    from step_oracle import plans

    from .context import host_digest

    check_products(output)
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
            name = unit.split("/")[0]
            if "error" in rows:
                found.append(Finding("products", unit, "open", rows["error"], "gemm"))
                continue
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
    found, cases, rows = [], attention.cases(), output.sections["attention"]
    major, minor = map(int, output.manifest["card"]["compute_capability"].split("."))
    for unit in rows:
        if unit not in cases:
            raise OutputError(f"the output has the attention case {unit!r}, which this tree does not have")

    def add(unit: str, kind: str, text: str, claim: dict[str, Any] | None = None) -> None:
        found.append(Finding("attention", unit, kind, text, "attention", claim or {}))

    for unit, case in cases.items():
        row, why = rows.get(unit), attention.unreachable(case, major, minor)
        if row is None:
            if not output.dry and not why:
                add(unit, "open", "not in the output")
        elif "error" in row:
            add(unit, "open", row["error"])
        elif why or "na" in row:
            add(unit, "na" if why else "open", why or row["na"])
        else:
            arrays, have = case["arrays"], row["outputs"]
            if not set(have) <= set(arrays):
                other = min(set(have) - set(arrays))
                raise OutputError(f"the output has {other!r} of {unit}, which the case does not have")
            bad = {k: r["sha256"] for k, r in have.items() if arrays[k]["sha256"] != r["sha256"]}
            missing = sorted(attention.names(case) - set(have))
            if bad:
                kind = "open" if attention.may_split(case) else "contradicted"
                add(unit, kind, ", ".join(bad), {"attention": unit, "sha256": bad})
            else:
                add(unit, "open" if missing else "confirmed", f"without {', '.join(missing)}" if missing else "")
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


def plan_files(output: Output) -> tuple[dict[str, str], list[str]]:
    """The products with what cuBLASLt's heuristic said; its log; the plan table that the log decides: texts by file
    name, and what is said of them."""
    import step_oracle
    from step_oracle import plan_log

    sections = output.sections.get("products", {})
    rows = [{"setting": u.split("/")[0], **r} for u, part in sections.items() for r in part.get("products", [])]
    files: dict[str, str] = {}
    said, lines = [], [line for row in rows for line in row.get("lines", [])]
    if any(row.get("heuristic") for row in rows):
        short = [{k: v for k, v in row.items() if k != "lines"} for row in rows]
        files["heuristics.json"] = "[\n" + ",\n".join(json.dumps(r) for r in short) + "\n]\n"
        said.append(f"heuristics.json ({len(rows)} rows)")
    if not lines:
        return files, said
    files["lt.log"] = "\n".join(lines) + "\n"
    said.append(f"lt.log ({len(lines)} lines)")
    card = next((c for c in step_oracle.cards.cards() if same_card(c, output.manifest["card"])), None)
    if card is None:
        return files, [*said, "no plan table: the card is not in docs/cards.md"]
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "lt.log"
        log.write_text(files["lt.log"])
        try:
            plans = plan_log.read(log, card, f"cuBLASLt {output.manifest['versions'].get('cublaslt', '')}")
        except (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError) as e:
            return files, [*said, f"no plan table: {e}"]
    files["plan-table.json"] = plans.table
    counts = f"{len(plans.rows)} kinds decided, {len(plans.open)} open, {len(plans.unknown)} unknown"
    return files, [*said, f"plan-table.json ({counts})"]


def evidence_rows(output: Output, findings: list[Finding], record: str) -> list[dict[str, Any]]:
    """Grade "card" for a family whose every reachable unit in this tree the card has confirmed. A dry run has none."""
    if output.dry:
        return []
    rows = []
    card, cc = output.manifest["card"]["name"], output.manifest["card"]["compute_capability"]
    for section in ("vectors", "arith", "attention"):
        for family in dict.fromkeys(f.family for f in findings if f.section == section):
            # the readers have a finding for each reachable unit of this tree, measured or not
            mine = [f for f in findings if f.section == section and f.family == family and f.kind != "na"]
            good = [f for f in mine if f.kind == "confirmed" and (section != "arith" or f.claim.get("whole"))]
            if not good or len(good) < len(mine):
                continue
            what = f"all {len(good)} reachable {section} on {card}"
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
    if "compiled" in claim:
        known = claim["compiled"] in compiled.rows()
        return known and all(compiled.expected(claim["compiled"]).get(k) == d for k, d in claim["sha256"].items())
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
