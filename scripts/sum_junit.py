#!/usr/bin/env python3
"""Prints 'passed|failed|skipped NAME' for each test in a JUnit file that ctest wrote.

usage: scripts/sum_junit.py FILE

ctest writes a test that asked to be skipped, and one that could not start, both as <skipped>; only the
first is a skip here. A missing, broken or empty file ends with 1.
"""
import sys
import xml.etree.ElementTree


def status(case: xml.etree.ElementTree.Element) -> str:
    if case.get("status") == "run" and case.find("failure") is None:
        return "passed"
    skip = case.find("skipped")
    if skip is not None and skip.get("message", "").startswith(("SKIP_RETURN_CODE", "SKIP_REGULAR_EXPRESSION")):
        return "skipped"
    return "skipped" if case.get("status") == "disabled" else "failed"


def main() -> int:
    try:
        cases = xml.etree.ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    for case in cases:
        print(status(case), case.get("name"))
    return 0 if cases else 1


if __name__ == "__main__":
    sys.exit(main())
