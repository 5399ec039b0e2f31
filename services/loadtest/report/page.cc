#include "services/loadtest/report/page.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "services/loadtest/report/chart.h"

namespace baton::loadtest {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #fff; --text: #1b1f24; --soft: #424a53; --line: #d8dee4;
  --grid: #e6eaef; --mark: #b35900; --warning: #fff3cd; --better: #1a7f37; --worse: #cf222e;
  --run-a: #1f6feb; --pale-a: #8ab4f8; --run-b: #d9480f; --pale-b: #f4a582; }
@media (prefers-color-scheme: dark) { :root { --page: #11151b; --text: #e6e9ed; --soft: #a9b3be; --line: #333b45;
  --grid: #262d36; --mark: #e0a04a; --warning: #4a3a10; --better: #56c271; --worse: #ff7b72;
  --run-a: #6cb0ff; --pale-a: #3a68a8; --run-b: #ff9a5c; --pale-b: #a85e3a; } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px auto; padding: 0 16px; max-width: 1180px;
  color: var(--text); background: var(--page); }
h1 { font-size: 22px; } h2 { font-size: 17px; margin-top: 32px; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; margin: 8px 0; } td, th { padding: 3px 12px 3px 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { font-weight: 600; border-bottom: 1px solid var(--line); }
td.text, th.text { text-align: left; } td.text { min-width: 6em; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; }
svg { width: 100%; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg text.title { font-size: 13px; font-weight: 600; fill: var(--text); }
.grid { stroke: var(--grid); } .mark { stroke: var(--mark); stroke-dasharray: 3 3; }
.warning { background: var(--warning); border-left: 4px solid var(--mark); padding: 8px 12px; margin: 8px 0; }
.better { color: var(--better); } .worse { color: var(--worse); }
@media (max-width: 800px) { .charts { grid-template-columns: 1fr; } table { display: block; overflow-x: auto; } }
)";

}  // namespace

std::string Page(const std::string& title, const std::string& body) {
  const std::string text = Escape(title);
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>",
      text,
      "</title><style>",
      kStyle,
      "</style></head><body>\n<h1>",
      text,
      "</h1>\n",
      body,
      "</body></html>\n");
}

}  // namespace baton::loadtest
