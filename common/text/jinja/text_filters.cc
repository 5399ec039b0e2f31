// Filters that make text.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/text/jinja/filters.h"
#include "common/text/jinja/printing.h"
#include "common/text/jinja/python_text.h"
#include "common/text/utf8.h"

namespace baton::text::jinja {
namespace {

absl::StatusOr<Value> Trim(Evaluator& evaluator,
                           std::string_view name,
                           const Value& value,
                           const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ToText(value, &evaluator.budget()));
  return CallMethod(evaluator, Value(text), name == "trim" ? "strip" : name, arguments);
}

// upper, lower and capitalize are the methods of str.
absl::StatusOr<Value> ChangeCase(Evaluator& evaluator,
                                 std::string_view name,
                                 const Value& value,
                                 const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ToText(value, &evaluator.budget()));
  return CallMethod(evaluator, Value(text), name, arguments);
}

// Unlike str.title: words start after white space, a hyphen or an opening bracket only.
absl::StatusOr<Value> TitleFilter(Evaluator& evaluator,
                                  std::string_view name,
                                  const Value& value,
                                  const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  BATON_ASSIGN_OR_RETURN(const std::string text, ToText(value, &evaluator.budget()));
  std::string out;
  std::string word;
  for (const std::string_view c : SplitCodePoints(text)) {
    const bool separates = IsPythonSpace(NextUtf8(c).code_point) || c == "-" || c == "(" ||
                           c == "{" || c == "[" || c == "<";
    if (!separates) {
      word += c;
      continue;
    }
    out += Capitalize(std::exchange(word, {}));
    out += c;
  }
  return evaluator.NewString(out + Capitalize(word));
}

absl::StatusOr<Value> Replace(Evaluator& evaluator,
                              std::string_view name,
                              const Value& value,
                              const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind(name, {"old", "new", "count"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::string text, ToText(value, &evaluator.budget()));
  return ReplaceText(evaluator, text, bound);
}

absl::StatusOr<Value> ToString(Evaluator& evaluator,
                               std::string_view name,
                               const Value& value,
                               const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  if (value.IsString()) return value;
  BATON_ASSIGN_OR_RETURN(std::string text, ToText(value, &evaluator.budget()));
  return Value(std::move(text));
}

absl::StatusOr<std::string> IndentText(const Value& indent) {
  if (indent.IsString()) return indent.AsString();
  BATON_ASSIGN_OR_RETURN(const int64_t width, IntArgument(indent, 0));
  constexpr int64_t kMaxIndent = 64;
  return std::string(static_cast<size_t>(std::clamp<int64_t>(width, 0, kMaxIndent)), ' ');
}

// The `tojson` that HuggingFace transformers gives to chat templates: json.dumps without HTML
// escaping.
absl::StatusOr<Value> ToJsonFilter(Evaluator& evaluator,
                                   std::string_view name,
                                   const Value& value,
                                   const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(
      const BoundArguments bound,
      Bind(name, {"ensure_ascii", "indent", "separators", "sort_keys"}, arguments));
  JsonStyle style;
  // transformers puts ensure_ascii first, Jinja2's own tojson puts indent first; a number can only
  // mean indent.
  const bool first_is_indent = bound[0].has_value() && bound[0]->IsInt();
  const std::optional<Value> indent = first_is_indent ? bound[0] : bound[1];
  style.ensure_ascii = !first_is_indent && BoolArgument(bound[0], false);
  style.sort_keys = BoolArgument(bound[3], false);
  if (indent.has_value() && !indent->IsNone()) {
    style.multiline = true;
    style.item_separator = std::string(1, ',');
    BATON_ASSIGN_OR_RETURN(style.indent, IndentText(*indent));
  }
  if (bound[2].has_value() && !bound[2]->IsNone()) {
    const Value& separators = *bound[2];
    if (!separators.IsList() || separators.AsList().items.size() != 2) {
      return absl::InvalidArgumentError("separators must be a pair");
    }
    BATON_ASSIGN_OR_RETURN(style.item_separator, StringArgument(separators.AsList().items[0], ","));
    BATON_ASSIGN_OR_RETURN(style.key_separator, StringArgument(separators.AsList().items[1], ":"));
    const size_t per_item = style.item_separator.size() + style.key_separator.size();
    if (per_item > 64) return absl::InvalidArgumentError("the separators are too long");
  }
  BATON_ASSIGN_OR_RETURN(std::string text, ToJson(value, style, &evaluator.budget()));
  return evaluator.NewString(std::move(text));
}

absl::StatusOr<Value> Join(Evaluator& evaluator,
                           std::string_view name,
                           const Value& value,
                           const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound, Bind(name, {"d", "attribute"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::string separator, StringArgument(bound[0], ""));
  if (!bound[1].has_value() || bound[1]->IsNone()) return JoinText(evaluator, value, separator);
  BATON_ASSIGN_OR_RETURN(const auto items, evaluator.Iterate(value));
  std::vector<Value> parts;
  for (const Value& item : items->items) {
    BATON_ASSIGN_OR_RETURN(Value part, FollowPath(evaluator, item, *bound[1]));
    parts.push_back(std::move(part));
  }
  BATON_ASSIGN_OR_RETURN(const Value list, evaluator.NewList(std::move(parts)));
  return JoinText(evaluator, list, separator);
}

// Every line but the first (unless `first`) is indented; blank ones only with `blank`.
absl::StatusOr<Value> Indent(Evaluator& evaluator,
                             std::string_view name,
                             const Value& value,
                             const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const BoundArguments bound,
                         Bind(name, {"width", "first", "blank"}, arguments));
  BATON_ASSIGN_OR_RETURN(const std::string text, ToText(value, &evaluator.budget()));
  BATON_ASSIGN_OR_RETURN(const std::string indention,
                         IndentText(bound[0].value_or(Value(int64_t{4}))));
  const bool blank = BoolArgument(bound[2], false);
  std::string out;
  if (BoolArgument(bound[1], false)) out += indention;
  const std::vector<std::string_view> lines = SplitLines(text, /*keep_ends=*/false);
  BATON_RETURN_IF_ERROR(evaluator.budget().Charge(lines.size() * (indention.size() + 1)));
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += indention;
    out += lines[i];
  }
  // A line break at the end of the text is kept, with the blank line after it.
  const bool ends_with_break =
      !lines.empty() && lines.back().data() + lines.back().size() != text.data() + text.size();
  if (ends_with_break) {
    out += '\n';
    if (blank) out += indention;
  }
  return evaluator.NewString(std::move(out));
}

std::string_view EscapeCharacter(const char& c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&#34;";
    case '\'':
      return "&#39;";
    default:
      return {&c, 1};
  }
}

absl::StatusOr<Value> Escape(Evaluator& evaluator,
                             std::string_view name,
                             const Value& value,
                             const Arguments& arguments) {
  BATON_RETURN_IF_ERROR(Bind(name, {}, arguments).status());
  BATON_ASSIGN_OR_RETURN(const std::string text, ToText(value, &evaluator.budget()));
  BATON_RETURN_IF_ERROR(evaluator.budget().Charge(5 * text.size()));
  std::string out;
  for (const char& c : text) {
    out += EscapeCharacter(c);
  }
  return evaluator.NewString(std::move(out));
}

constexpr std::array<FilterEntry, 14> kFilters = {{
    {"trim", Trim},
    {"upper", ChangeCase},
    {"lower", ChangeCase},
    {"capitalize", ChangeCase},
    {"title", TitleFilter},
    {"replace", Replace},
    {"string", ToString},
    {"safe", ToString},
    {"tojson", ToJsonFilter},
    {"join", Join},
    {"indent", Indent},
    {"escape", Escape},
    {"e", Escape},
    {"forceescape", Escape},
}};

}  // namespace

FilterFunction FindTextFilter(std::string_view name) {
  for (const FilterEntry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

absl::StatusOr<Value> ReplaceText(Evaluator& evaluator,
                                  std::string_view text,
                                  const BoundArguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const std::string from, StringArgument(arguments[0], ""));
  BATON_ASSIGN_OR_RETURN(const std::string to, StringArgument(arguments[1], ""));
  BATON_ASSIGN_OR_RETURN(const int64_t limit, IntArgument(arguments[2], -1));
  BATON_RETURN_IF_ERROR(ChargeFind(text, from, &evaluator.budget()));
  size_t count = text.size() + 1;
  if (!from.empty()) {
    count = 0;
    for (size_t i = text.find(from); i != std::string_view::npos;
         i = text.find(from, i + from.size()))
      ++count;
  }
  if (count > 0 && to.size() > kMaxWork / count)
    return evaluator.budget().Charge(std::numeric_limits<size_t>::max());
  BATON_RETURN_IF_ERROR(evaluator.budget().Charge(count * (to.size() + kItemCost)));
  return evaluator.NewString(ReplaceAll(text, from, to, limit));
}

absl::StatusOr<Value> JoinText(Evaluator& evaluator,
                               const Value& items,
                               std::string_view separator) {
  BATON_ASSIGN_OR_RETURN(const auto list, evaluator.Iterate(items));
  std::string text;
  for (size_t i = 0; i < list->items.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const std::string part, ToText(list->items[i], &evaluator.budget()));
    BATON_RETURN_IF_ERROR(evaluator.budget().Charge(separator.size()));
    if (i > 0) text += separator;
    text += part;
  }
  return evaluator.NewString(std::move(text));
}

}  // namespace baton::text::jinja
