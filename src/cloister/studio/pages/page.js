// What every page has: the theme, and asking for values.
const root = document.documentElement, button = document.getElementById("theme");
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = [];

export const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
export const onTheme = (call) => listeners.push(call);
export const byId = (id) => document.getElementById(id);

const remembered = () => { try { return localStorage.getItem("cloister-theme"); } catch { return null; } };
const show = () => { button.textContent = isDark() ? "Light" : "Dark"; listeners.forEach((call) => call()); };

// The page of several runs has the script of the report, which looks after the theme itself.
if (!document.querySelector('script[src="/static/report.js"]')) {
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("cloister-theme", root.dataset.theme); } catch { /* a page without storage */ }
    show();
  });
  systemDark.addEventListener("change", show);
  show();
}

export const asked = async (address, signal) => {
  const answer = await fetch(address, { signal });
  if (answer.status === 204) return null;
  if (answer.status === 401) return { error: "This page is no longer known to the server: open the address that it printed." };
  return answer.json();
};
