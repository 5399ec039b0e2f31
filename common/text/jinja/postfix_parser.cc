// What follows a value: attributes, subscripts, calls, filters and tests.
#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/text/jinja/parser.h"

namespace baton::text::jinja {

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePostfix(ExpressionPtr node) {
  while (true) {
    if (cursor_.SkipOperator(".")) {
      BATON_ASSIGN_OR_RETURN(node, ParseDot(std::move(node)));
    } else if (cursor_.SkipOperator("[")) {
      BATON_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
    } else if (cursor_.AtOperator("(")) {
      ExpressionPtr call = New(ExpressionKind::kCall);
      BATON_RETURN_IF_ERROR(AddOperand(std::move(node), call.get()));
      BATON_RETURN_IF_ERROR(ParseArguments(call.get()));
      node = std::move(call);
    } else {
      return node;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseDot(ExpressionPtr node) {
  if (cursor_.Current().kind == TokenKind::kInteger) {
    ExpressionPtr key = New(ExpressionKind::kConstant);
    key->constant = Value(cursor_.Current().integer);
    cursor_.Advance();
    return Binary(ExpressionKind::kSubscript, "", std::move(node), std::move(key));
  }
  ExpressionPtr attribute = New(ExpressionKind::kAttribute);
  BATON_ASSIGN_OR_RETURN(attribute->text, cursor_.ExpectName());
  BATON_RETURN_IF_ERROR(AddOperand(std::move(node), attribute.get()));
  return attribute;
}

// object[key] or object[start:stop:step]; the bracket is already open.
absl::StatusOr<ExpressionPtr> ExpressionParser::ParseSubscript(ExpressionPtr node) {
  std::array<ExpressionPtr, 3> parts;
  size_t colons = 0;
  while (!cursor_.AtOperator("]")) {
    if (cursor_.SkipOperator(":")) {
      if (++colons > 2) return cursor_.Error("a slice has at most three parts");
      continue;
    }
    if (parts[colons] != nullptr) return cursor_.Error("expected ']'");
    BATON_ASSIGN_OR_RETURN(parts[colons], ParseExpression());
  }
  BATON_RETURN_IF_ERROR(cursor_.ExpectOperator("]"));
  if (colons == 0) {
    if (parts[0] == nullptr) return cursor_.Error("empty subscript");
    return Binary(ExpressionKind::kSubscript, "", std::move(node), std::move(parts[0]));
  }
  ExpressionPtr slice = New(ExpressionKind::kSlice);
  BATON_RETURN_IF_ERROR(AddOperand(std::move(node), slice.get()));
  for (ExpressionPtr& part : parts) BATON_RETURN_IF_ERROR(AddOperand(std::move(part), slice.get()));
  return slice;
}

absl::Status ExpressionParser::ParseArguments(Expression* call) {
  BATON_RETURN_IF_ERROR(cursor_.ExpectOperator("("));
  while (!cursor_.AtOperator(")")) {
    if (cursor_.AtOperator("*") || cursor_.AtOperator("**")) {
      return cursor_.Error("argument unpacking with * is not supported");
    }
    const bool is_keyword = cursor_.Current().kind == TokenKind::kName &&
                            cursor_.Next().kind == TokenKind::kOperator &&
                            cursor_.Next().text == "=";
    if (is_keyword) {
      BATON_ASSIGN_OR_RETURN(std::string name, cursor_.ExpectName());
      cursor_.Advance();
      BATON_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      call->depth = std::max(call->depth, value->depth + 1);
      call->keywords.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call->keywords.empty())
        return cursor_.Error("a positional argument follows a keyword argument");
      BATON_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      BATON_RETURN_IF_ERROR(AddOperand(std::move(value), call));
    }
    if (!cursor_.SkipOperator(",")) break;
  }
  return cursor_.ExpectOperator(")");
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFilters(ExpressionPtr node) {
  while (true) {
    if (cursor_.SkipOperator("|")) {
      BATON_ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
    } else if (cursor_.SkipName("is")) {
      BATON_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else if (cursor_.AtOperator("(")) {  // calls the result of a filter
      BATON_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
    } else {
      return node;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFilter(ExpressionPtr node) {
  ExpressionPtr filter = New(ExpressionKind::kFilter);
  BATON_ASSIGN_OR_RETURN(filter->text, cursor_.ExpectName());
  BATON_RETURN_IF_ERROR(AddOperand(std::move(node), filter.get()));
  if (cursor_.AtOperator("(")) BATON_RETURN_IF_ERROR(ParseArguments(filter.get()));
  return filter;
}

// A test may take one argument without parentheses: `x is divisibleby 3`.
bool ExpressionParser::AtTestArgument() const {
  const Token& token = cursor_.Current();
  switch (token.kind) {
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    case TokenKind::kOperator:
      return token.text == "[" || token.text == "{";
    case TokenKind::kName:
      return token.text != "else" && token.text != "or" && token.text != "and" &&
             token.text != "if" && token.text != "is" && token.text != "in" && token.text != "not";
    default:
      return false;
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTest(ExpressionPtr node) {
  ExpressionPtr test = New(ExpressionKind::kTest);
  test->negated = cursor_.SkipName("not");
  BATON_ASSIGN_OR_RETURN(test->text, cursor_.ExpectName());
  BATON_RETURN_IF_ERROR(AddOperand(std::move(node), test.get()));
  if (cursor_.AtOperator("(")) {
    BATON_RETURN_IF_ERROR(ParseArguments(test.get()));
  } else if (AtTestArgument()) {
    BATON_ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    BATON_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    BATON_RETURN_IF_ERROR(AddOperand(std::move(argument), test.get()));
  }
  return test;
}

}  // namespace baton::text::jinja
