// Syntax tree of a chat template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/text/jinja/value.h"

namespace baton::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// Deepest nesting of an expression and of statements, counted in nodes of the tree. Bounds the
// stack of every walk.
inline constexpr int kMaxExpressionDepth = 200;
inline constexpr int kMaxStatementDepth = 40;

enum class ExpressionKind {
  kConstant,     // constant
  kName,         // text
  kList,         // operands
  kTuple,        // operands
  kDict,         // operands: key, value, key, value ...
  kUnary,        // text: "-", "+" or "not"; operands: 1
  kBinary,       // text: + - * / // % **; operands: 2
  kAnd,          // operands: 2
  kOr,           // operands: 2
  kCompare,      // operators[i] between operands[i] and operands[i + 1]
  kConcat,       // operands, joined as text (~)
  kConditional,  // operands: value, condition, else value or null
  kAttribute,    // operands: object; text: name
  kSubscript,    // operands: object, key
  kSlice,        // operands: object, start, stop, step; the last three may be null
  kCall,         // operands: callee, arguments ...; keywords
  kFilter,       // text: name; operands: value, arguments ...; keywords
  kTest,         // text: name; operands: value, arguments ...; keywords; negated
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 0;
  int depth = 1;  // 1 + the deepest child
  std::string text;
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<std::string> operators;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  bool negated = false;
};

enum class StatementKind {
  kText,      // text
  kOutput,    // expression
  kIf,        // branches; the else branch has no condition
  kFor,       // targets in expression, filtered by condition: body, else_body
  kSet,       // targets, or targets[0].attribute = expression
  kSetBlock,  // targets[0], or targets[0].attribute = output of body
  kMacro,     // text(parameters): body
  kGroup,     // body, without a meaning of its own ({% generation %})
  kBreak,
  kContinue,
};

struct Branch;

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<std::string> targets;
  std::string attribute;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // name and default value or null
  std::vector<Branch> branches;
  std::vector<Statement> body;
  std::vector<Statement> else_body;
};

struct Branch {
  ExpressionPtr condition;
  std::vector<Statement> body;
};

}  // namespace baton::text::jinja
