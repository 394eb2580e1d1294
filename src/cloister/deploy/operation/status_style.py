"""How the status page looks: light or dark as the browser prefers, tables that become lists on a phone."""

STYLE = """
:root { --ground: #fff; --surface: #f6f6f3; --text: #1c1d1f; --muted: #5c6066; --line: #dcdcd8; --bar: #2a6f97;
  --good: #23663b; --bad: #8a2c0d; --bad-ground: #fdf0ea; --track: #e4e4df; color-scheme: light; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181b; --surface: #1d2024; --text: #e7e7e4; --muted: #a3a8ae;
  --line: #373b41; --bar: #6fb3dc; --good: #8fd3a5; --bad: #ffb597; --bad-ground: #35221b; --track: #33373d;
  color-scheme: dark; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1.25rem 3rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
  -webkit-text-size-adjust: 100%; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.6rem; }
p { margin: 0.3rem 0; }
.muted, th { color: var(--muted); }
.good { color: var(--good); }
.bad { color: var(--bad); }
.warning { background: var(--bad-ground); color: var(--bad); border-left: 3px solid; padding: 0.6rem 0.9rem;
  margin: 1rem 0 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(15rem, 100%), 1fr)); gap: 0.8rem;
  margin-top: 1.2rem; }
.tile { background: var(--surface); border: 1px solid var(--line); border-radius: 6px; padding: 0.8rem 1rem; }
.tile h2 { font-size: 0.9rem; font-weight: 600; margin: 0; color: var(--muted); }
.tile .figure { font-size: 1.4rem; font-variant-numeric: tabular-nums; margin: 0.1rem 0 0.4rem;
  overflow-wrap: anywhere; }
.tile p { font-size: 0.88rem; }
progress { appearance: none; -webkit-appearance: none; display: block; width: 100%; height: 8px; border: 0;
  border-radius: 4px; background: var(--track); overflow: hidden; margin: 0.2rem 0 0.5rem; }
progress::-webkit-progress-bar { background: var(--track); }
progress::-webkit-progress-value { background: var(--bar); border-radius: 4px; }
progress::-moz-progress-bar { background: var(--bar); border-radius: 4px; }
table { border-collapse: collapse; width: 100%; font-size: 0.94rem; }
th { text-align: left; font-weight: 600; font-size: 0.85rem; }
th, td { padding: 0.4rem 0.9rem 0.4rem 0; border-bottom: 1px solid var(--line); vertical-align: baseline;
  overflow-wrap: anywhere; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 0.88em ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2rem 1rem; margin: 0;
  font-size: 0.94rem; }
dt { color: var(--muted); }
dd { margin: 0; }
ul { list-style: none; margin: 0; padding: 0; font-size: 0.94rem; }
li { display: grid; grid-template-columns: 5.5rem minmax(0, 1fr); gap: 0 0.8rem; padding: 0.25rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
li time { color: var(--muted); font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) {
  body { padding: 1rem 1rem 2rem; }
  thead { position: absolute; left: -999rem; }
  tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0.1rem 1rem; border-bottom: 1px solid var(--line);
    padding: 0.5rem 0; }
  td, td.number { display: block; border: 0; padding: 0; text-align: left; white-space: normal; }
  td:first-child { grid-column: 1 / -1; font-weight: 600; }
  td:not(:first-child)::before, td.round::before { content: attr(data-name) " "; color: var(--muted);
    font-size: 0.85rem; }
  td.none { display: none; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 0.5rem; }
}
"""
