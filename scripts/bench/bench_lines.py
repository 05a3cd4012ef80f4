"""What the tables of this folder share: reading what a script kept ('== NAME', then what a program printed), and printing."""
import math
import re
import sys
from dataclasses import dataclass, field

HEADING = re.compile(r"== (.+)$")


@dataclass
class Section:
    """What one program printed; `where` is FILE:LINE of its heading, `lines` are (FILE:LINE, text)."""
    name: str
    where: str
    lines: list = field(default_factory=list)


def refuse(what):
    print(f"{sys.argv[0].rsplit('/', 1)[-1].removesuffix('.py')}: {what}", file=sys.stderr)
    sys.exit(1)


def numbered_lines(paths):
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    yield f"{path}:{number}", line.rstrip("\n")
        except OSError as error:
            refuse(f"{path}: {error.strerror}")


def read_sections(paths, names=None):
    """In order; lines before the first heading are passed over. `names`: those that may stand in a heading."""
    sections = []
    for where, line in numbered_lines(paths):
        heading = HEADING.match(line)
        if heading:
            sections.append(Section(heading[1], where))
            if names and heading[1] not in names:
                refuse(f"{where}: no row of this table: '{heading[1]}' (rows: {', '.join(names)})")
        elif sections:
            sections[-1].lines.append((where, line))
    if not sections:
        refuse("nothing to read: no line begins with '== '")
    return sections


def read_line(where, line, read):
    """read(line), or the end of the program with its place."""
    try:
        return read(line)
    except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
        refuse(f"{where}: cannot be read ({error!r}): {line.strip()[:80]}")


def number(text):
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"not a number: {text}")
    return value


def positive(text):
    value = number(text)
    if value <= 0:
        raise ValueError(f"not positive: {text}")
    return value


def words(line):
    """The key=value words of a line."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def ratio(value, base):
    return None if value is None or not base else value / base


def percent(value, base, sign="+"):
    """How far value is from base, as '+4.3 %'; nothing where either is missing."""
    share = ratio(value, base)
    return None if share is None else f"{100 * (share - 1):{sign}.1f} %"


def print_table(columns, rows):
    """Columns: (title, format or None). A value that is missing is a dash; the first column is the row's name."""
    shown = [[title for title, _ in columns]]
    for row in rows:
        shown.append(["-" if v is None else format(v, f or "") for v, (_, f) in zip(row, columns, strict=True)])
    widths = [max(len(line[i]) for line in shown) for i in range(len(columns))]
    for line in shown:
        cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  ".join(cells).rstrip())
