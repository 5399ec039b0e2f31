#include "common/text/jinja/printing.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/utf8.h"

namespace baton::text::jinja {
namespace {

// str.isprintable of one character.
bool IsPrintable(uint32_t code_point) {
  if (code_point == ' ') return true;
  const uint32_t mask = U_GET_GC_MASK(static_cast<UChar32>(code_point));
  return (mask & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

void AppendHexEscape(uint32_t code_point, std::string* out) {
  if (code_point <= 0xFF) {
    absl::StrAppendFormat(out, "\\x%02x", code_point);
  } else if (code_point <= 0xFFFF) {
    absl::StrAppendFormat(out, "\\u%04x", code_point);
  } else {
    absl::StrAppendFormat(out, "\\U%08x", code_point);
  }
}

// repr of a str: single quotes unless only double quotes avoid escaping.
void AppendStringRepr(std::string_view text, std::string* out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  *out += quote;
  while (!text.empty()) {
    const Utf8Item item = NextUtf8(text);
    const uint32_t c = item.code_point;
    if (c == static_cast<uint8_t>(quote) || c == '\\') {
      *out += {'\\', static_cast<char>(c)};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      *out += {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'};
    } else if (IsPrintable(c)) {
      *out += text.substr(0, item.size);
    } else {
      AppendHexEscape(c, out);
    }
    text.remove_prefix(item.size);
  }
  *out += quote;
}

// Scalars alike in str and repr.
std::string ScalarText(const Value& value) {
  if (value.IsUndefined()) return "";
  if (value.IsNone()) return "None";
  if (value.IsBool()) return value.AsBool() ? "True" : "False";
  if (value.IsInt()) return Concat(value.AsInt());
  if (value.IsDouble()) return FloatRepr(value.AsDouble());
  return Concat("<", value.TypeName(), ">");
}

void AppendRepr(const Value& value, std::string* out) {
  if (value.IsString()) {
    AppendStringRepr(value.AsString(), out);
  } else if (value.IsList()) {
    const List& list = value.AsList();
    *out += list.is_tuple ? '(' : '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) *out += ", ";
      AppendRepr(list.items[i], out);
    }
    if (list.is_tuple && list.items.size() == 1) *out += ',';
    *out += list.is_tuple ? ')' : ']';
  } else if (value.IsDict()) {
    const char* separator = "{";
    if (value.AsDict().items.empty()) *out += '{';
    for (const auto& [key, member] : value.AsDict().items) {
      *out += separator;
      AppendRepr(key, out);
      *out += ": ";
      AppendRepr(member, out);
      separator = ", ";
    }
    *out += '}';
  } else {
    *out += value.IsUndefined() ? "Undefined" : ScalarText(value);
  }
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget* budget) : style_(style), budget_(budget) {}

  absl::Status Write(const Value& value, size_t level) {
    BATON_RETURN_IF_ERROR(budget_->Charge(level * style_.indent.size() + 1));
    if (value.IsString()) {
      WriteString(value.AsString());
    } else if (value.IsList()) {
      return WriteList(value.AsList(), level);
    } else if (value.IsDict()) {
      return WriteDict(value.AsDict(), level);
    } else if (value.IsNone()) {
      out_ += "null";
    } else if (value.IsBool()) {
      out_ += value.AsBool() ? "true" : "false";
    } else if (value.IsInt()) {
      out_ += Concat(value.AsInt());
    } else if (value.IsDouble()) {
      out_ += FloatJson(value.AsDouble());
    } else {
      return absl::InvalidArgumentError(
          Concat("a value of type ", value.TypeName(), " cannot be written as JSON"));
    }
    return absl::OkStatus();
  }

  std::string Take() { return std::move(out_); }

 private:
  static std::string FloatJson(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return FloatRepr(value);
  }

  void NewLine(size_t level) {
    if (!style_.multiline) return;
    out_ += '\n';
    for (size_t i = 0; i < level; ++i) out_ += style_.indent;
  }

  void WriteString(std::string_view text) {
    out_ += '"';
    while (!text.empty()) {
      const Utf8Item item = NextUtf8(text);
      WriteCharacter(item.code_point, text.substr(0, item.size));
      text.remove_prefix(item.size);
    }
    out_ += '"';
  }

  void WriteCharacter(uint32_t c, std::string_view bytes) {
    constexpr std::string_view kNamed = "\"\\\n\r\t\f\b";
    constexpr std::string_view kLetters = "\"\\nrtfb";
    const size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      out_ += {'\\', kLetters[named]};
    } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c <= 0xFFFF && c != 0x7F)) {
      absl::StrAppendFormat(&out_, "\\u%04x", c);
    } else if (style_.ensure_ascii && c > 0xFFFF) {
      absl::StrAppendFormat(&out_,
                            "\\u%04x\\u%04x",
                            0xD800 + ((c - 0x10000) >> 10),
                            0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      out_ += bytes;
    }
  }

  absl::Status WriteList(const List& list, size_t level) {
    if (list.items.empty()) {
      out_ += "[]";
      return absl::OkStatus();
    }
    out_ += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      BATON_RETURN_IF_ERROR(Write(list.items[i], level + 1));
    }
    NewLine(level);
    out_ += ']';
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> KeyText(const Value& key) const {
    if (key.IsString()) return key.AsString();
    if (key.IsNone()) return "null";
    if (key.IsBool()) return key.AsBool() ? "true" : "false";
    if (key.IsInt()) return Concat(key.AsInt());
    if (key.IsDouble()) return FloatJson(key.AsDouble());
    return absl::InvalidArgumentError(Concat("a JSON key cannot be a ", key.TypeName()));
  }

  absl::Status WriteDict(const Dict& dict, size_t level) {
    if (dict.items.empty()) {
      out_ += "{}";
      return absl::OkStatus();
    }
    std::vector<std::pair<std::string, const Value*>> members;
    for (const auto& [key, member] : dict.items) {
      BATON_ASSIGN_OR_RETURN(std::string text, KeyText(key));
      members.emplace_back(std::move(text), &member);
    }
    if (style_.sort_keys) {
      std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
        return a.first < b.first;
      });
    }
    out_ += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      NewLine(level + 1);
      WriteString(members[i].first);
      out_ += style_.key_separator;
      BATON_RETURN_IF_ERROR(Write(*members[i].second, level + 1));
    }
    NewLine(level);
    out_ += '}';
    return absl::OkStatus();
  }

  const JsonStyle& style_;
  Budget* budget_;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> ToText(const Value& value, Budget* budget) {
  BATON_RETURN_IF_ERROR(budget->Charge(value.Cost()));
  if (value.IsString()) return value.AsString();
  if (!value.IsList() && !value.IsDict()) return ScalarText(value);
  std::string out;
  AppendRepr(value, &out);
  return out;
}

absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Budget* budget) {
  BATON_RETURN_IF_ERROR(budget->Charge(value.Cost()));
  JsonWriter writer(style, budget);
  BATON_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

// Python's float_repr_style "short": fixed notation for exponents from -4 to 15.
std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 64> buffer{};
  auto end = std::to_chars(
                 buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific)
                 .ptr;
  const std::string scientific(buffer.data(), end);
  const size_t e = scientific.find('e');
  int exponent = 0;
  const char* digits = scientific.data() + e + (scientific[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits, scientific.data() + scientific.size(), exponent);
  if (exponent < -4 || exponent >= 16) return scientific;
  end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed)
            .ptr;
  std::string fixed(buffer.data(), end);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

}  // namespace baton::text::jinja
