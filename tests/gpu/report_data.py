"""What report_page.py makes its page of: a report whose parts may be missing, numbers as text, and bars with their verdicts."""

NOT_MEASURED = "not measured"
SCHEMA = "stemma.gpu_report.v1"


class Report:
    """What is read of a report; anything may be missing."""

    def __init__(self, content):
        if content and content.get("schema") != SCHEMA:
            raise SystemExit(f"this is no {SCHEMA}")
        self.parts = (content or {}).get("parts", {})
        self.taken = (content or {}).get("taken", {})

    def state(self, part):
        return self.parts.get(part, {}).get("state", NOT_MEASURED)

    def fact(self, part, name):
        return self.parts.get(part, {}).get("facts", {}).get(name)

    def rows(self, part, table):
        return self.parts.get(part, {}).get("tables", {}).get(table, [])

    def device(self):
        """The device of the self-check, or of any part."""
        names = [at(self.fact("self_check", "device"), "name"), *(part.get("device") for part in self.parts.values())]
        return next((name for name in names if name), NOT_MEASURED)

    def origin(self, part):
        """{what: of which} by which two parts can differ. Parts of older reports do not name their device."""
        found = self.parts.get(part, {})
        return {"device": found.get("device") or self.device(), "commit": found.get("commit") or self.taken.get("commit"),
                "date": found.get("date") or self.taken.get("date")}

    def apart(self, part, other):
        """Says what makes a ratio of two parts' numbers doubtful; empty where both are of one build on one device."""
        mine, others = self.origin(part), self.origin(other)
        differs = [f"{part} of {what} {mine[what]}, {other} of {others[what]}" for what in ("device", "commit")
                   if mine[what] != others[what]]
        return "; ".join(differs)

    def mixed(self, part):
        """Names the commits of a part that was joined by hand; empty where it is of one."""
        commit = self.parts.get(part, {}).get("commit", "")
        return f"of {commit}" if "," in commit else ""


def number(value, digits=2):
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}"


def seconds(spread, digits=3):
    """median (least–most)"""
    if not spread:
        return NOT_MEASURED
    return f"{spread['median']:.{digits}f} ({spread['least']:.{digits}f}–{spread['most']:.{digits}f})"


def share(value):
    return NOT_MEASURED if value is None else f"{100 * value:.1f}%"


def gigabytes(value):
    return NOT_MEASURED if value is None else f"{value / 1e9:.2f}"


def at(row, *keys):
    for key in keys:
        if not isinstance(row, dict) or key not in row:
            return None
        row = row[key]
    return row


def cell(row, text):
    """The text, or why there is no number."""
    return f"{NOT_MEASURED}: {row['not_measured']}" if row and "not_measured" in row else text


def table(head, rows):
    if not rows:
        return []
    align = "|".join("---" if index == 0 else "---:" for index in range(len(head)))
    return ["| " + " | ".join(head) + " |", f"|{align}|", *("| " + " | ".join(row) + " |" for row in rows)]


class Cells:
    """How many of the numbers that a bar is about are there."""

    def __init__(self, measured, known, cut=()):
        self.measured, self.known, self.cut = measured, known, list(cut)

    @classmethod
    def of_rows(cls, report, tables, has_number):
        """`tables`: [(part, rows)]. A part that is not done may lack rows that nobody knows of."""
        rows = [row for _, rows in tables for row in rows]
        cut = [f"{part} {report.state(part)}" for part, _ in tables if report.state(part) != "done"]
        return cls(sum(map(has_number, rows)), len(rows), cut)

    def all_there(self):
        return self.measured == self.known and not self.cut

    def text(self):
        return "; ".join([f"{self.measured} of {self.known} measured", *self.cut])


class Bars:
    """What a number has to reach, each with its verdict; a bar without a number is not measured, and none is met by a part of
    what it is about."""

    def __init__(self):
        self.lines = []

    def add(self, what, target, shown, reached, cells=None):
        """`shown`: the value as text, with None as its verdict where there is no value."""
        if reached is None:
            self.lines.append(f"* {NOT_MEASURED}: {what} ({target})")
            return
        some = cells is not None and not cells.all_there()
        verdict = "**missed**" if not reached else f"{NOT_MEASURED} whole" if some else "met"
        self.lines.append(f"* {verdict}: {what}: {shown}{f', {cells.text()}' if some else ''} ({target})")


def least(value, limit):
    """Whether it is so much; None: there is no value."""
    return None if value is None else value >= limit


def most(value, limit):
    return None if value is None else value <= limit
