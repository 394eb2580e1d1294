"""What a verification found: what is proven, what is only stated, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Findings:
    """Of one folder. `wrong` is empty where everything agrees; each of its sentences begins with the file's name."""

    place: str
    headline: str = ""
    proven: list[tuple[str, str]] = field(default_factory=list)
    """Each with the word that it is found by."""
    stated: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    certificate_sha256: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def lines(self, width: int = 100) -> list[str]:
        """For people: one screen."""
        import textwrap

        found = [self.place, *([self.headline] if self.headline and self.good else [])]
        for title, rows in ((_PROVEN, self.proven), (_STATED, self.stated)):
            found += ["", title] if rows and self.good else []
            for name, text in rows if self.good else ():
                found += textwrap.wrap(
                    text,
                    width,
                    initial_indent=f"  {name:<12}",
                    subsequent_indent=" " * 14,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        for mark, texts in (("WRONG  ", self.wrong), ("NOTE   ", self.warnings if self.good else [])):
            found += [""] if texts else []
            for text in texts:
                found += textwrap.wrap(text, width, initial_indent=mark, subsequent_indent="       ")
        if not self.good:
            found += ["", "NOT VERIFIED: nothing in these files can be relied on."]
        elif self.certificate_sha256:
            found += ["", f"SHA-256 of certificate.json: {self.certificate_sha256}"]
        return found


_PROVEN = "PROVEN by these files alone, computed afresh:"
_STATED = "ONLY STATED by whoever published them; no file can prove it:"
