// Values of the chat template language.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace baton::text::jinja {

class Value;
struct List;
struct Dict;
struct Namespace;  // attributes assignable with {% set ns.x = ... %}; owned by the evaluation
struct LoopState;
struct Callable;

// Deepest nesting of lists and dicts. Keeps every walk over a value within a small stack.
inline constexpr int kMaxValueDepth = 64;

// A name that has no value; `name` says which, for messages.
struct Undefined {
  std::shared_ptr<const std::string> name;
};
struct None {};

// One immutable value with Python's semantics. Copies are cheap: strings, lists and dicts are
// shared. Lists and dicts never change once made, so there are no cycles.
class Value {
 public:
  Value() = default;  // undefined
  // NOLINTBEGIN(google-explicit-constructor): literals of every type are values.
  Value(None none) : data_(none) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(std::shared_ptr<const List> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Dict> value) : data_(std::move(value)) {}
  Value(Namespace* value) : data_(value) {}
  Value(std::shared_ptr<LoopState> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<const Callable> value) : data_(std::move(value)) {}
  // NOLINTEND(google-explicit-constructor)
  static Value UndefinedNamed(std::string_view name);

  bool IsUndefined() const { return Holds<Undefined>(); }
  bool IsNone() const { return Holds<None>(); }
  bool IsBool() const { return Holds<bool>(); }
  bool IsInt() const { return Holds<int64_t>(); }
  bool IsDouble() const { return Holds<double>(); }
  bool IsNumber() const { return IsInt() || IsDouble() || IsBool(); }  // as in Python, bool counts
  bool IsString() const { return Holds<std::shared_ptr<const std::string>>(); }
  bool IsList() const { return Holds<std::shared_ptr<const List>>(); }
  bool IsDict() const { return Holds<std::shared_ptr<const Dict>>(); }
  bool IsNamespace() const { return Holds<Namespace*>(); }
  bool IsLoop() const { return Holds<std::shared_ptr<LoopState>>(); }
  bool IsCallable() const { return Holds<std::shared_ptr<const Callable>>(); }

  // Accessors; the kind must have been checked.
  bool AsBool() const { return std::get<bool>(data_); }
  int64_t AsInt() const { return std::get<int64_t>(data_); }
  double AsDouble() const { return std::get<double>(data_); }
  const std::string& AsString() const {
    return *std::get<std::shared_ptr<const std::string>>(data_);
  }
  const List& AsList() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const std::shared_ptr<const List>& ListPointer() const {
    return std::get<std::shared_ptr<const List>>(data_);
  }
  const Dict& AsDict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace* AsNamespace() const { return std::get<Namespace*>(data_); }
  LoopState& AsLoop() const { return *std::get<std::shared_ptr<LoopState>>(data_); }
  const Callable& AsCallable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }

  // Name of an undefined value, for messages.
  std::string_view UndefinedName() const;

  // An int or bool as a number; a double otherwise (IsNumber must hold).
  int64_t IntValue() const { return IsBool() ? static_cast<int64_t>(AsBool()) : AsInt(); }
  double DoubleValue() const { return IsDouble() ? AsDouble() : static_cast<double>(IntValue()); }

  // Python's truth value.
  bool Truthy() const;

  // Nesting: 0 for a scalar, 1 + the deepest member for a list or dict.
  int Depth() const;

  // About the bytes that a walk over the value touches (comparing, printing). Kept in each list and
  // dict, because a value that holds the same list many times over can be far larger to walk than
  // to store. Saturates.
  size_t Cost() const;

  // "str", "int", "dict" ... as Python names the type.
  std::string_view TypeName() const;

 private:
  template <typename T>
  bool Holds() const {
    return std::holds_alternative<T>(data_);
  }

  std::variant<Undefined,
               None,
               bool,
               int64_t,
               double,
               std::shared_ptr<const std::string>,
               std::shared_ptr<const List>,
               std::shared_ptr<const Dict>,
               Namespace*,
               std::shared_ptr<LoopState>,
               std::shared_ptr<const Callable>>
      data_;
};

// A list, or a tuple: they differ only in how they print.
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
  size_t cost = 1;  // see Value::Cost
};

// Members in the order of insertion, found by string key in constant time.
struct Dict {
  // Replaces the value of an equal key, or appends.
  void Set(Value key, Value value);
  // nullptr when absent.
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;

  std::vector<std::pair<Value, Value>> items;
  absl::flat_hash_map<std::string, size_t> index;  // of string keys
  int depth = 1;
  size_t cost = 1;  // see Value::Cost
};

struct Namespace {
  Dict attributes;
};

// The `loop` variable of a for loop.
struct LoopState {
  std::shared_ptr<const List> items;
  size_t index = 0;
  int64_t nesting = 0;
};

// A function: a global, a bound method or a macro.
struct Callable {
  enum class Kind { kGlobal, kMethod, kLoopCycle, kMacro };
  Kind kind = Kind::kGlobal;
  std::string name;
  Value self;                               // kMethod, kLoopCycle
  const struct Statement* macro = nullptr;  // kMacro; lives as long as the template
};

// Makes a list or dict; InvalidArgument when nested deeper than kMaxValueDepth.
absl::StatusOr<Value> MakeList(std::vector<Value> items, bool is_tuple = false);
absl::StatusOr<Value> MakeDict(Dict dict);

// Converts request data. InvalidArgument for invalid UTF-8, integers beyond 64 bits, or nesting
// over kMaxValueDepth.
absl::StatusOr<Value> ValueFromJson(const nlohmann::ordered_json& json);

// Python's == and, where defined, <. Ordering is InvalidArgument between kinds that Python does not
// order.
bool Equals(const Value& a, const Value& b);
absl::StatusOr<bool> Less(const Value& a, const Value& b);

}  // namespace baton::text::jinja
