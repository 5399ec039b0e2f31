#include "common/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/python_text.h"
#include "common/text/utf8.h"

namespace baton::text::jinja {
namespace {

// Longest first among those that share a start.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNameChar(char c) { return IsNameStart(c) || IsDigit(c); }
bool IsBlank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\v' || c == '\f' || c == '\r';
}

// \r\n and \r become \n; one newline at the end is dropped.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeNewlines(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (i_ < source_.size()) BATON_RETURN_IF_ERROR(LexTextAndTag());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(Concat("line ", line_, ": ", what));
  }
  bool At(std::string_view what) const {
    return std::string_view(source_).substr(i_, what.size()) == what;
  }
  char Peek(size_t ahead) const { return i_ + ahead < source_.size() ? source_[i_ + ahead] : '\0'; }

  void Advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(i_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(i_ + count),
                                         '\n'));
    i_ += count;
  }
  void SkipBlanks() {
    const std::string_view rest = std::string_view(source_).substr(i_);
    Advance(rest.size() - StripLeft(rest).size());
  }
  void Add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), 0, 0, line_});
  }

  // Text up to the next tag. `sign` is the character after the tag's opening, '-', '+' or none.
  void AddText(std::string_view text, char sign, bool is_output) {
    if (sign == '-') {
      text = StripRight(text);
    } else if (sign != '+' && !is_output) {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
      const bool at_line_start = line_start > 0 || line_starting_;
      if (at_line_start && StripLeft(text.substr(line_start)).empty())
        text = text.substr(0, line_start);
    }
    if (!text.empty()) Add(TokenKind::kText, text);
  }

  // One stretch of text and the tag that follows it.
  absl::Status LexTextAndTag() {
    size_t open = i_;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        open = source_.size();
        break;
      }
      const char kind = source_[open + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const std::string_view text = std::string_view(source_).substr(i_, open - i_);
    if (open == source_.size()) {
      if (!text.empty()) Add(TokenKind::kText, text);
      i_ = open;
      return absl::OkStatus();
    }
    const char kind = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    AddText(text, has_sign ? sign : '\0', kind == '{');
    Advance(text.size() + 2 + (has_sign ? 1 : 0));
    if (kind == '#') return LexComment();
    if (kind == '%') {
      if (LexRawTag()) return LexRawBody();
      Add(TokenKind::kBlockBegin, "");
      return LexTag(TokenKind::kBlockEnd, "%}");
    }
    Add(TokenKind::kOutputBegin, "");
    return LexTag(TokenKind::kOutputEnd, "}}");
  }

  // Consumes what may follow a closing: white space after '-', one newline after a block
  // (trim_blocks).
  void CloseTag(size_t size, char sign, bool is_output) {
    Advance(size);
    const size_t end = i_;
    if (sign == '-') {
      SkipBlanks();
    } else if (sign != '+' && !is_output && Peek(0) == '\n') {
      Advance(1);
    }
    line_starting_ = i_ > end && source_[i_ - 1] == '\n';
  }

  absl::Status LexComment() {
    const size_t close = source_.find("#}", i_);
    if (close == std::string::npos) return Error("missing end of comment tag");
    const char sign = close > i_ && (source_[close - 1] == '-' || source_[close - 1] == '+')
                          ? source_[close - 1]
                          : '\0';
    Advance(close - i_);
    CloseTag(2, sign, /*is_output=*/false);
    return absl::OkStatus();
  }

  // After "{%": true, and past the tag, when it reads `raw %}`.
  bool LexRawTag() {
    const size_t start = i_;
    const int start_line = line_;
    SkipBlanks();
    if (At("raw") && !IsNameChar(Peek(3))) {
      Advance(3);
      SkipBlanks();
      const char sign = Peek(0);
      if (At("-%}") || At("%}")) {
        Advance(sign == '-' ? 3 : 2);
        if (sign == '-') SkipBlanks();
        line_starting_ = source_[i_ - 1] == '\n';
        return true;
      }
    }
    i_ = start;
    line_ = start_line;
    return false;
  }

  absl::Status LexRawBody() {
    for (size_t open = source_.find("{%", i_); open != std::string::npos;
         open = source_.find("{%", open + 1)) {
      size_t j = open + 2;
      const char sign =
          j < source_.size() && (source_[j] == '-' || source_[j] == '+') ? source_[j] : '\0';
      if (sign != '\0') ++j;
      while (j < source_.size() && IsBlank(source_[j])) ++j;
      if (source_.compare(j, 6, "endraw") != 0) continue;
      j += 6;
      while (j < source_.size() && IsBlank(source_[j])) ++j;
      const char end_sign =
          j < source_.size() && (source_[j] == '-' || source_[j] == '+') ? source_[j] : '\0';
      if (end_sign != '\0') ++j;
      if (source_.compare(j, 2, "%}") != 0) continue;
      AddText(std::string_view(source_).substr(i_, open - i_), sign, /*is_output=*/false);
      Advance(j - i_);
      CloseTag(2, end_sign, /*is_output=*/false);
      return absl::OkStatus();
    }
    return Error("missing end of raw directive");
  }

  // The inside of a tag up to its closing.
  absl::Status LexTag(TokenKind end_kind, std::string_view close) {
    const bool is_output = end_kind == TokenKind::kOutputEnd;
    std::string brackets;  // that are open
    while (true) {
      SkipBlanks();
      if (i_ >= source_.size()) return Error("unexpected end of template inside a tag");
      if (brackets.empty()) {
        const char sign = Peek(0) == '-' || (Peek(0) == '+' && !is_output) ? Peek(0) : '\0';
        const size_t skip = sign == '\0' ? 0 : 1;
        if (std::string_view(source_).substr(i_ + skip, close.size()) == close) {
          Add(end_kind, "");
          CloseTag(skip + close.size(), sign, is_output);
          return absl::OkStatus();
        }
      }
      BATON_RETURN_IF_ERROR(LexExpressionToken(&brackets));
    }
  }

  absl::Status LexExpressionToken(std::string* brackets) {
    const char c = Peek(0);
    if (IsNameStart(c)) {
      size_t size = 1;
      while (IsNameChar(Peek(size))) ++size;
      Add(TokenKind::kName, std::string_view(source_).substr(i_, size));
      Advance(size);
      return absl::OkStatus();
    }
    if (IsDigit(c)) return LexNumber();
    if (c == '"' || c == '\'') return LexString(c);
    for (const std::string_view op : kOperators) {
      if (!At(op)) continue;
      BATON_RETURN_IF_ERROR(Balance(op[0], brackets));
      Add(TokenKind::kOperator, op);
      Advance(op.size());
      return absl::OkStatus();
    }
    const Utf8Item item = NextUtf8(std::string_view(source_).substr(i_));
    return Error(
        Concat("unexpected character '", std::string_view(source_).substr(i_, item.size), "'"));
  }

  absl::Status Balance(char c, std::string* brackets) const {
    if (c == '(' || c == '[' || c == '{') brackets->push_back(c);
    if (c != ')' && c != ']' && c != '}') return absl::OkStatus();
    const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
    if (brackets->empty() || brackets->back() != open)
      return Error(Concat("unexpected '", std::string(1, c), "'"));
    brackets->pop_back();
    return absl::OkStatus();
  }

  absl::Status LexNumber() {
    std::string digits;
    size_t size = 0;
    bool is_float = false;
    const auto take_digits = [&] {
      while (IsDigit(Peek(size)) || (Peek(size) == '_' && IsDigit(Peek(size + 1)))) {
        if (Peek(size) != '_') digits += Peek(size);
        ++size;
      }
    };
    take_digits();
    if (Peek(size) == '.' && IsDigit(Peek(size + 1)) && (i_ == 0 || source_[i_ - 1] != '.')) {
      is_float = true;
      digits += '.';
      ++size;
      take_digits();
    }
    const size_t exponent_digit = Peek(size + 1) == '+' || Peek(size + 1) == '-' ? 2 : 1;
    if ((Peek(size) == 'e' || Peek(size) == 'E') && IsDigit(Peek(size + exponent_digit))) {
      is_float = true;
      for (size_t k = 0; k < exponent_digit; ++k) {
        if (Peek(size) != '+') digits += Peek(size);
        ++size;
      }
      take_digits();
    }
    Token token{is_float ? TokenKind::kFloat : TokenKind::kInteger, digits, 0, 0, line_};
    const char* end = digits.data() + digits.size();
    const auto result = is_float ? std::from_chars(digits.data(), end, token.number)
                                 : std::from_chars(digits.data(), end, token.integer);
    if (result.ec != std::errc() || result.ptr != end)
      return Error(Concat("the number ", digits, " is out of range"));
    tokens_.push_back(std::move(token));
    Advance(size);
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    size_t end = 1;
    while (i_ + end < source_.size() && source_[i_ + end] != quote)
      end += source_[i_ + end] == '\\' ? 2 : 1;
    if (i_ + end >= source_.size()) return Error("string without an end");
    const absl::StatusOr<std::string> text =
        Unescape(std::string_view(source_).substr(i_ + 1, end - 1));
    if (!text.ok()) return Error(std::string(text.status().message()));
    Add(TokenKind::kString, *text);
    Advance(end + 1);
    return absl::OkStatus();
  }

  // Python's escapes of a string literal; an unknown one stays as it is.
  static absl::StatusOr<std::string> Unescape(std::string_view raw) {
    std::string out;
    for (size_t k = 0; k < raw.size(); ++k) {
      if (raw[k] != '\\') {
        out += raw[k];
        continue;
      }
      const char c = raw[++k];
      constexpr std::string_view kNames = "abfnrtv\\'\"\n";
      constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
      const size_t named = kNames.find(c);
      if (named != std::string_view::npos) {
        if (named < kValues.size()) out += kValues[named];
        continue;
      }
      const size_t width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      uint32_t code_point = 0;
      if (width > 0) {
        const std::string_view hex = raw.substr(k + 1, width);
        const auto parsed = std::from_chars(hex.data(), hex.data() + hex.size(), code_point, 16);
        if (hex.size() != width || parsed.ptr != hex.data() + width)
          return absl::InvalidArgumentError("truncated \\ escape");
        k += width;
      } else if (c >= '0' && c <= '7') {
        size_t count = 0;
        for (;
             count < 3 && k + count < raw.size() && raw[k + count] >= '0' && raw[k + count] <= '7';
             ++count) {
          code_point = code_point * 8 + static_cast<uint32_t>(raw[k + count] - '0');
        }
        k += count - 1;
      } else {
        out += {'\\', c};
        continue;
      }
      if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) {
        return absl::InvalidArgumentError("an escape is not a Unicode character");
      }
      AppendUtf8(code_point, &out);
    }
    return out;
  }

  const std::string source_;
  size_t i_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Lex(std::string_view source) { return Lexer(source).Run(); }

}  // namespace baton::text::jinja
