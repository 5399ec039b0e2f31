// Runs the syntax tree of a chat template.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/text/jinja/arguments.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/budget.h"

namespace baton::text::jinja {

// One rendering. Every evaluated node and every byte made is charged to the budget, and nesting is
// limited, so that no template or input can run long, use much memory or overflow the stack. Not
// thread-safe.
class Evaluator {
 public:
  // `context` must outlive the evaluator. `now` is what strftime_now formats, in UTC.
  Evaluator(const Dict& context, absl::Time now) : context_(context), now_(now) {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // The text that `body` prints.
  absl::StatusOr<std::string> Render(const std::vector<Statement>& body);

  // For filters, tests and methods.
  Budget& budget() { return budget_; }
  absl::StatusOr<Value> ApplyFilter(std::string_view name,
                                    const Value& value,
                                    const Arguments& arguments);
  absl::StatusOr<bool> ApplyTest(std::string_view name,
                                 const Value& value,
                                 const Arguments& arguments);
  // Members of an iterable: list items, dict keys, characters; nothing for undefined.
  absl::StatusOr<std::shared_ptr<const List>> Iterate(const Value& value);
  // object.name and object[key]; undefined when there is none.
  absl::StatusOr<Value> GetAttribute(const Value& object, std::string_view name);
  absl::StatusOr<Value> GetItem(const Value& object, const Value& key);
  // True when `item` is in `container`, as Python's `in`.
  absl::StatusOr<bool> Contains(const Value& container, const Value& item);
  // Makes a list and charges for it.
  absl::StatusOr<Value> NewList(std::vector<Value> items, bool is_tuple = false);
  // A string value; charges for it.
  absl::StatusOr<Value> NewString(std::string text);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  struct Scope {
    std::vector<std::pair<std::string_view, Value>> variables;
  };

  // Statements (evaluator.cc).
  absl::StatusOr<Flow> RunBody(const std::vector<Statement>& body);
  absl::StatusOr<Flow> Run(const Statement& statement);
  absl::Status RunOutput(const Statement& statement);
  absl::StatusOr<Flow> RunIf(const Statement& statement);
  absl::StatusOr<Flow> RunFor(const Statement& statement);
  absl::StatusOr<Flow> RunLoop(const Statement& statement, std::shared_ptr<const List> items);
  absl::StatusOr<std::shared_ptr<const List>> FilterItems(const Statement& statement,
                                                          std::shared_ptr<const List> items);
  absl::Status RunSet(const Statement& statement);
  absl::Status Assign(const Statement& statement, Value value);
  absl::Status Unpack(const std::vector<std::string>& targets, const Value& value);
  absl::Status Print(std::string_view text);
  absl::StatusOr<std::string> Capture(const std::vector<Statement>& body);
  void SetVariable(std::string_view name, Value value);
  Value Lookup(std::string_view name) const;

  // Expressions (expressions.cc).
  absl::StatusOr<Value> Evaluate(const Expression& expression);
  absl::StatusOr<Value> EvaluateNode(const Expression& expression);
  absl::StatusOr<Value> EvaluateSequence(const Expression& expression);
  absl::StatusOr<Value> EvaluateDict(const Expression& expression);
  absl::StatusOr<Value> EvaluateUnary(const Expression& expression);
  absl::StatusOr<Value> EvaluateBinary(const Expression& expression);
  absl::StatusOr<Value> EvaluateLogic(const Expression& expression);
  absl::StatusOr<Value> EvaluateCompare(const Expression& expression);
  absl::StatusOr<bool> Compare(std::string_view op, const Value& left, const Value& right);
  absl::StatusOr<Value> EvaluateConcat(const Expression& expression);
  absl::StatusOr<Value> EvaluateConditional(const Expression& expression);
  absl::StatusOr<Value> EvaluateSlice(const Expression& expression);
  absl::StatusOr<Value> EvaluateFilterOrTest(const Expression& expression);
  absl::StatusOr<Value> EvaluateCall(const Expression& expression);
  absl::StatusOr<Arguments> EvaluateArguments(const Expression& expression);

  // Calls (calls.cc).
  absl::StatusOr<Value> Call(const Value& callee, const Arguments& arguments);
  absl::StatusOr<Value> CallGlobal(std::string_view name, const Arguments& arguments);
  absl::StatusOr<Value> CallMacro(const Statement& macro, const Arguments& arguments);
  absl::StatusOr<Value> MakeNamespace(const Arguments& arguments);
  absl::StatusOr<Value> MakeRange(const Arguments& arguments);
  absl::StatusOr<Value> FormatNow(const Arguments& arguments);

  const Dict& context_;
  const absl::Time now_;
  Budget budget_;
  std::deque<Scope> scopes_;
  size_t frame_ =
      0;  // first scope of the running macro; scope 0, the template's own, is visible as well
  int macro_depth_ = 0;
  int evaluation_depth_ = 0;
  int64_t loop_depth_ = 0;
  std::string* output_ = nullptr;
  std::deque<Namespace> namespaces_;
};

// Charges for searching `needle` in `text`, whose worst case is their product for a long needle.
absl::Status ChargeFind(std::string_view text, std::string_view needle, Budget* budget);

// True for the functions that every template sees: range, namespace, dict, raise_exception,
// strftime_now.
bool IsGlobalFunction(std::string_view name);

// Arithmetic of + - * / // % ** (arithmetic.cc).
absl::StatusOr<Value> Arithmetic(std::string_view op,
                                 const Value& left,
                                 const Value& right,
                                 Evaluator& evaluator);

// str.replace(old, new, count) and separator.join(items), shared by methods and filters
// (text_filters.cc).
absl::StatusOr<Value> ReplaceText(Evaluator& evaluator,
                                  std::string_view text,
                                  const BoundArguments& arguments);
absl::StatusOr<Value> JoinText(Evaluator& evaluator,
                               const Value& items,
                               std::string_view separator);

// Methods of str, list and dict (methods.cc). HasMethod says whether `object.name` is one.
bool HasMethod(const Value& object, std::string_view name);
absl::StatusOr<Value> CallMethod(Evaluator& evaluator,
                                 const Value& object,
                                 std::string_view name,
                                 const Arguments& arguments);

}  // namespace baton::text::jinja
