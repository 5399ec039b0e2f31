#include "common/text/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <utility>

#include "common/base/status_macros.h"
#include "common/text/concat.h"

namespace baton::text {
namespace {

constexpr size_t kMaxPatternBytes = 16384;
constexpr uint32_t kMatchLimit = 20'000'000;  // backtracking steps of one match
constexpr uint32_t kHeapLimitKib = 256 * 1024;

// Members of White_Space: the ASCII controls 9..13, U+0085 and the separators.
constexpr std::string_view kWhiteSpace = R"(\t-\r\x{85}\p{Z})";

absl::Status Refuse(std::string_view what, std::string_view pattern) {
  return absl::UnimplementedError(
      Concat("pre-tokenizer regex uses ", what, ", which is not supported: ", pattern));
}

// Walks a pattern once and writes the PCRE2 form.
class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    for (; i_ < pattern_.size(); ++i_) {
      const char c = pattern_[i_];
      if (c == '\\') {
        BATON_RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        BATON_RETURN_IF_ERROR(InClass(c));
      } else {
        BATON_RETURN_IF_ERROR(Outside(c));
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status Escape() {
    if (++i_ == pattern_.size()) return Refuse("a trailing backslash", pattern_);
    const char c = pattern_[i_];
    if (c == 's') {
      out_ += Concat(in_class_ ? "" : "[", kWhiteSpace, in_class_ ? "" : "]");
      return absl::OkStatus();
    }
    if (c == 'S' && !in_class_) {
      out_ += Concat("[^", kWhiteSpace, "]");
      return absl::OkStatus();
    }
    constexpr std::string_view kSameInBoth = "dDwWpPrntfabBAzx";
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter && kSameInBoth.find(c) == std::string_view::npos) {
      return Refuse(Concat("the escape \\", std::string(1, c), in_class_ ? " in a class" : ""),
                    pattern_);
    }
    out_ += {'\\', c};
    return absl::OkStatus();
  }

  absl::Status InClass(char c) {
    if (c == '[') return Refuse("a class inside a class", pattern_);
    if (c == '&' && i_ + 1 < pattern_.size() && pattern_[i_ + 1] == '&') {
      return Refuse("class intersection (&&)", pattern_);
    }
    if (c == ']') in_class_ = false;
    out_ += c;
    return absl::OkStatus();
  }

  absl::Status Outside(char c) {
    out_ += c;
    if (c == '[') {
      in_class_ = true;
      if (i_ + 1 < pattern_.size() && pattern_[i_ + 1] == '^') out_ += pattern_[++i_];
      if (i_ + 1 < pattern_.size() && pattern_[i_ + 1] == ']')
        return Refuse("an empty class", pattern_);
      return absl::OkStatus();
    }
    // Inline flags and groups other than these differ between the engines.
    if (c == '(' && i_ + 1 < pattern_.size() &&
        (pattern_[i_ + 1] == '?' || pattern_[i_ + 1] == '*')) {
      const std::string_view rest = pattern_.substr(i_ + 1);
      for (const std::string_view known : {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:", "?i)"}) {
        if (rest.substr(0, known.size()) == known) return absl::OkStatus();
      }
      return Refuse(Concat("the group (", std::string(rest.substr(0, 3))), pattern_);
    }
    return absl::OkStatus();
  }

  std::string_view pattern_;
  size_t i_ = 0;
  bool in_class_ = false;
  std::string out_;
};

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

std::string PcreMessage(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

absl::StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern) {
  return PatternTranslator(pattern).Run();
}

struct RegexSplitter::Code {
  pcre2_code* regex = nullptr;
  pcre2_match_context* context = nullptr;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(regex);
  }

  // JIT first; the interpreter takes over when the JIT's small machine stack does not suffice.
  int Match(std::string_view text, size_t start, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int rc =
        pcre2_match(regex, subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, context);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    return pcre2_match(
        regex, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
  }
};

RegexSplitter::RegexSplitter(std::unique_ptr<Code> code) : code_(std::move(code)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

absl::StatusOr<RegexSplitter> RegexSplitter::Create(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(Concat("pre-tokenizer regex of ",
                                             pattern.size(),
                                             " bytes is over the limit of ",
                                             kMaxPatternBytes));
  }
  BATON_ASSIGN_OR_RETURN(const std::string translated, TranslateOnigurumaPattern(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  // MULTILINE: in Oniguruma's default syntax ^ and $ match at line borders.
  code->regex = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                              translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error,
                              &offset,
                              nullptr);
  if (code->regex == nullptr) {
    return absl::InvalidArgumentError(Concat(
        "pre-tokenizer regex: ", PcreMessage(error), " at byte ", offset, " of ", translated));
  }
  // Without JIT support the interpreter gives the same matches, only slower.
  pcre2_jit_compile(code->regex, PCRE2_JIT_COMPLETE);
  code->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(code->context, kMatchLimit);
  pcre2_set_heap_limit(code->context, kHeapLimitKib);
  return RegexSplitter(std::move(code));
}

absl::Status RegexSplitter::Split(std::string_view text,
                                  absl::FunctionRef<absl::Status(std::string_view)> visit) const {
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create(1, nullptr));
  size_t piece_start = 0;  // end of the last match
  size_t search_start = 0;
  while (search_start < text.size()) {
    const int rc = code_->Match(text, search_start, data.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::InvalidArgumentError(
          Concat("pre-tokenizer regex failed at byte ", search_start, ": ", PcreMessage(rc)));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    const size_t match_start = bounds[0];
    const size_t match_end = bounds[1];
    if (match_end <= match_start) {  // an empty match makes no piece; step one code point
      search_start = match_start + 1;
      while (search_start < text.size() &&
             (static_cast<uint8_t>(text[search_start]) & 0xC0) == 0x80) {
        ++search_start;
      }
      continue;
    }
    if (match_start > piece_start) {
      BATON_RETURN_IF_ERROR(visit(text.substr(piece_start, match_start - piece_start)));
    }
    BATON_RETURN_IF_ERROR(visit(text.substr(match_start, match_end - match_start)));
    piece_start = search_start = match_end;
  }
  if (piece_start < text.size()) return visit(text.substr(piece_start));
  return absl::OkStatus();
}

}  // namespace baton::text
