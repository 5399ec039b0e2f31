#include <algorithm>
#include <array>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/jinja/parser.h"

namespace baton::text::jinja {
namespace {

// Open calls of ParseExpression and ParseUnary; each takes a dozen stack frames.
constexpr int kMaxParserNesting = 128;

}  // namespace

absl::Status TokenCursor::Error(std::string_view what) const {
  return absl::InvalidArgumentError(Concat("line ", Current().line, ": ", what));
}

absl::Status TokenCursor::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) return Error(Concat("expected '", op, "', found '", Current().text, "'"));
  return absl::OkStatus();
}

absl::Status TokenCursor::ExpectBlockEnd() {
  if (Current().kind != TokenKind::kBlockEnd) {
    return Error(Concat("expected the end of the tag, found '", Current().text, "'"));
  }
  Advance();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenCursor::ExpectName() {
  if (Current().kind != TokenKind::kName)
    return Error(Concat("expected a name, found '", Current().text, "'"));
  std::string name = Current().text;
  Advance();
  return name;
}

ExpressionPtr ExpressionParser::New(ExpressionKind kind, std::string text) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = cursor_.Current().line;
  node->text = std::move(text);
  return node;
}

absl::Status ExpressionParser::AddOperand(ExpressionPtr child, Expression* node) const {
  if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
  node->operands.push_back(std::move(child));
  if (node->depth > kMaxExpressionDepth) {
    return cursor_.Error(Concat("expression nested deeper than ", kMaxExpressionDepth, " levels"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Binary(ExpressionKind kind,
                                                       std::string op,
                                                       ExpressionPtr left,
                                                       ExpressionPtr right) const {
  ExpressionPtr node = New(kind, std::move(op));
  BATON_RETURN_IF_ERROR(AddOperand(std::move(left), node.get()));
  BATON_RETURN_IF_ERROR(AddOperand(std::move(right), node.get()));
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseExpression() {
  if (++nesting_ > kMaxParserNesting) return cursor_.Error("expression nested too deeply");
  const absl::Cleanup leave = [this] { --nesting_; };
  BATON_ASSIGN_OR_RETURN(ExpressionPtr node, ParseOr());
  while (cursor_.SkipName("if")) {
    ExpressionPtr conditional = New(ExpressionKind::kConditional);
    BATON_RETURN_IF_ERROR(AddOperand(std::move(node), conditional.get()));
    BATON_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
    BATON_RETURN_IF_ERROR(AddOperand(std::move(condition), conditional.get()));
    ExpressionPtr otherwise;
    if (cursor_.SkipName("else")) {
      BATON_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    BATON_RETURN_IF_ERROR(AddOperand(std::move(otherwise), conditional.get()));
    node = std::move(conditional);
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTuple(bool with_conditional) {
  const auto parse_one = [&] { return with_conditional ? ParseExpression() : ParseOr(); };
  BATON_ASSIGN_OR_RETURN(ExpressionPtr first, parse_one());
  if (!cursor_.AtOperator(",")) return first;
  ExpressionPtr tuple = New(ExpressionKind::kTuple);
  BATON_RETURN_IF_ERROR(AddOperand(std::move(first), tuple.get()));
  while (cursor_.SkipOperator(",")) {
    const TokenKind kind = cursor_.Current().kind;
    if (kind == TokenKind::kBlockEnd || kind == TokenKind::kOutputEnd || cursor_.AtOperator(")"))
      break;
    BATON_ASSIGN_OR_RETURN(ExpressionPtr item, parse_one());
    BATON_RETURN_IF_ERROR(AddOperand(std::move(item), tuple.get()));
  }
  return tuple;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseOr() {
  BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
  while (cursor_.SkipName("or")) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
    BATON_ASSIGN_OR_RETURN(left,
                           Binary(ExpressionKind::kOr, "or", std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseAnd() {
  BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
  while (cursor_.SkipName("and")) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
    BATON_ASSIGN_OR_RETURN(left,
                           Binary(ExpressionKind::kAnd, "and", std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseNot() {
  if (!cursor_.SkipName("not")) return ParseCompare();
  if (++nesting_ > kMaxParserNesting) return cursor_.Error("expression nested too deeply");
  const absl::Cleanup leave = [this] { --nesting_; };
  ExpressionPtr node = New(ExpressionKind::kUnary, "not");
  BATON_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
  BATON_RETURN_IF_ERROR(AddOperand(std::move(operand), node.get()));
  return node;
}

std::string_view ExpressionParser::SkipComparison() {
  for (const std::string_view symbol : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (cursor_.SkipOperator(symbol)) return symbol;
  }
  if (cursor_.SkipName("in")) return "in";
  const Token& next = cursor_.Next();
  if (cursor_.AtName("not") && next.kind == TokenKind::kName && next.text == "in") {
    cursor_.Advance();
    cursor_.Advance();
    return "not in";
  }
  return {};
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseCompare() {
  BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAdd());
  std::string_view op = SkipComparison();
  if (op.empty()) return left;
  ExpressionPtr node = New(ExpressionKind::kCompare);
  BATON_RETURN_IF_ERROR(AddOperand(std::move(left), node.get()));
  while (!op.empty()) {
    node->operators.emplace_back(op);
    BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAdd());
    BATON_RETURN_IF_ERROR(AddOperand(std::move(right), node.get()));
    op = SkipComparison();
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseAdd() {
  BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseConcat());
  while (cursor_.AtOperator("+") || cursor_.AtOperator("-")) {
    std::string op = cursor_.Current().text;
    cursor_.Advance();
    BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseConcat());
    BATON_ASSIGN_OR_RETURN(
        left, Binary(ExpressionKind::kBinary, std::move(op), std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseConcat() {
  BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseMultiply());
  if (!cursor_.AtOperator("~")) return left;
  ExpressionPtr node = New(ExpressionKind::kConcat);
  BATON_RETURN_IF_ERROR(AddOperand(std::move(left), node.get()));
  while (cursor_.SkipOperator("~")) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseMultiply());
    BATON_RETURN_IF_ERROR(AddOperand(std::move(right), node.get()));
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseMultiply() {
  BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParsePower());
  while (cursor_.AtOperator("*") || cursor_.AtOperator("/") || cursor_.AtOperator("//") ||
         cursor_.AtOperator("%")) {
    std::string op = cursor_.Current().text;
    cursor_.Advance();
    BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParsePower());
    BATON_ASSIGN_OR_RETURN(
        left, Binary(ExpressionKind::kBinary, std::move(op), std::move(left), std::move(right)));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePower() {
  BATON_ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary(/*with_filters=*/true));
  while (cursor_.SkipOperator("**")) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr right, ParseUnary(/*with_filters=*/true));
    BATON_ASSIGN_OR_RETURN(
        left, Binary(ExpressionKind::kBinary, "**", std::move(left), std::move(right)));
  }
  return left;
}

// A sign binds tighter than a filter: -1|abs is (-1)|abs.
absl::StatusOr<ExpressionPtr> ExpressionParser::ParseUnary(bool with_filters) {
  if (++nesting_ > kMaxParserNesting) return cursor_.Error("expression nested too deeply");
  const absl::Cleanup leave = [this] { --nesting_; };
  ExpressionPtr node;
  if (cursor_.AtOperator("-") || cursor_.AtOperator("+")) {
    node = New(ExpressionKind::kUnary, cursor_.Current().text);
    cursor_.Advance();
    BATON_ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(/*with_filters=*/false));
    BATON_RETURN_IF_ERROR(AddOperand(std::move(operand), node.get()));
  } else {
    BATON_ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  BATON_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  if (with_filters) return ParseFilters(std::move(node));
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePrimary() {
  const Token& token = cursor_.Current();
  switch (token.kind) {
    case TokenKind::kName:
      return ParseNameOrLiteral();
    case TokenKind::kString:
      return ParseStrings();
    case TokenKind::kInteger:
    case TokenKind::kFloat: {
      ExpressionPtr node = New(ExpressionKind::kConstant);
      node->constant =
          token.kind == TokenKind::kInteger ? Value(token.integer) : Value(token.number);
      cursor_.Advance();
      return node;
    }
    default:
      break;
  }
  if (cursor_.SkipOperator("(")) return ParseParentheses();
  if (cursor_.SkipOperator("[")) return ParseListLiteral();
  if (cursor_.SkipOperator("{")) return ParseDictLiteral();
  return cursor_.Error(Concat("expected an expression, found '", token.text, "'"));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseNameOrLiteral() {
  const std::string& name = cursor_.Current().text;
  ExpressionPtr node = New(ExpressionKind::kConstant);
  if (name == "true" || name == "True") {
    node->constant = Value(true);
  } else if (name == "false" || name == "False") {
    node->constant = Value(false);
  } else if (name == "none" || name == "None") {
    node->constant = Value(None{});
  } else {
    node->kind = ExpressionKind::kName;
    node->text = name;
  }
  cursor_.Advance();
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseStrings() {
  ExpressionPtr node = New(ExpressionKind::kConstant);
  std::string text;
  for (; cursor_.Current().kind == TokenKind::kString; cursor_.Advance())
    text += cursor_.Current().text;
  node->constant = Value(std::move(text));
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseParentheses() {
  if (cursor_.SkipOperator(")")) return New(ExpressionKind::kTuple);
  BATON_ASSIGN_OR_RETURN(ExpressionPtr node, ParseTuple(/*with_conditional=*/true));
  BATON_RETURN_IF_ERROR(cursor_.ExpectOperator(")"));
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseListLiteral() {
  ExpressionPtr node = New(ExpressionKind::kList);
  while (!cursor_.AtOperator("]")) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
    BATON_RETURN_IF_ERROR(AddOperand(std::move(item), node.get()));
    if (!cursor_.SkipOperator(",")) break;
  }
  BATON_RETURN_IF_ERROR(cursor_.ExpectOperator("]"));
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseDictLiteral() {
  ExpressionPtr node = New(ExpressionKind::kDict);
  while (!cursor_.AtOperator("}")) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    BATON_RETURN_IF_ERROR(cursor_.ExpectOperator(":"));
    BATON_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    BATON_RETURN_IF_ERROR(AddOperand(std::move(key), node.get()));
    BATON_RETURN_IF_ERROR(AddOperand(std::move(value), node.get()));
    if (!cursor_.SkipOperator(",")) break;
  }
  BATON_RETURN_IF_ERROR(cursor_.ExpectOperator("}"));
  return node;
}

}  // namespace baton::text::jinja
