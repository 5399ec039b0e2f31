// Builds the syntax tree of a chat template.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "common/text/jinja/ast.h"
#include "common/text/jinja/lexer.h"

namespace baton::text::jinja {

// A cursor over tokens, with the errors of the parsers. `tokens` must outlive it and end with kEnd.
class TokenCursor {
 public:
  explicit TokenCursor(const std::vector<Token>& tokens) : tokens_(tokens) {}

  const Token& Current() const { return tokens_[index_]; }
  const Token& Next() const { return tokens_[index_ + 1 < tokens_.size() ? index_ + 1 : index_]; }
  void Advance() { index_ += index_ + 1 < tokens_.size() ? 1 : 0; }

  bool AtOperator(std::string_view op) const { return Is(TokenKind::kOperator, op); }
  bool AtName(std::string_view name) const { return Is(TokenKind::kName, name); }
  bool SkipOperator(std::string_view op) { return SkipIf(AtOperator(op)); }
  bool SkipName(std::string_view name) { return SkipIf(AtName(name)); }
  absl::Status ExpectOperator(std::string_view op);
  absl::Status ExpectBlockEnd();
  absl::StatusOr<std::string> ExpectName();
  absl::Status Error(std::string_view what) const;

 private:
  bool Is(TokenKind kind, std::string_view text) const {
    return Current().kind == kind && Current().text == text;
  }
  bool SkipIf(bool matches) {
    if (matches) Advance();
    return matches;
  }

  const std::vector<Token>& tokens_;
  size_t index_ = 0;
};

// Jinja2's expression grammar, with its precedence: conditional, or, and, not, comparison, + -, ~,
// * / // %, **, sign, then postfix (attribute, subscript, call), filters and tests. Refuses nesting
// over kMaxExpressionDepth.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor* cursor) : cursor_(*cursor) {}

  absl::StatusOr<ExpressionPtr> ParseExpression();
  // One expression, or several separated by commas, which make a tuple. `with_conditional` off
  // leaves a following `if` to the for statement.
  absl::StatusOr<ExpressionPtr> ParseTuple(bool with_conditional);

 private:
  using Result = absl::StatusOr<ExpressionPtr>;
  Result ParseOr();
  Result ParseAnd();
  Result ParseNot();
  Result ParseCompare();
  Result ParseAdd();
  Result ParseConcat();
  Result ParseMultiply();
  Result ParsePower();
  Result ParseUnary(bool with_filters);
  Result ParsePrimary();
  Result ParseNameOrLiteral();
  Result ParseStrings();
  Result ParseParentheses();
  Result ParseListLiteral();
  Result ParseDictLiteral();
  Result ParsePostfix(ExpressionPtr node);
  Result ParseFilters(ExpressionPtr node);
  Result ParseFilter(ExpressionPtr node);
  Result ParseTest(ExpressionPtr node);
  Result ParseDot(ExpressionPtr node);
  Result ParseSubscript(ExpressionPtr node);
  absl::Status ParseArguments(Expression* call);
  bool AtTestArgument() const;
  // Past a comparison operator; returns it, or an empty view where none stands.
  std::string_view SkipComparison();

  ExpressionPtr New(ExpressionKind kind, std::string text = {}) const;
  // Adds a child (may be null) and keeps the depth.
  absl::Status AddOperand(ExpressionPtr child, Expression* node) const;
  Result Binary(ExpressionKind kind, std::string op, ExpressionPtr left, ExpressionPtr right) const;

  TokenCursor& cursor_;
  int nesting_ = 0;  // open calls of the parser itself
};

// The statements of a template. InvalidArgument with the line for a syntax error or a tag that is
// not supported.
absl::StatusOr<std::vector<Statement>> ParseTemplate(const std::vector<Token>& tokens);

}  // namespace baton::text::jinja
