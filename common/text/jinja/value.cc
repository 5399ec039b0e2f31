#include "common/text/jinja/value.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "common/text/concat.h"
#include "common/text/utf8.h"

namespace baton::text::jinja {
namespace {

size_t SaturatingAdd(size_t a, size_t b) {
  return a > std::numeric_limits<size_t>::max() - b ? std::numeric_limits<size_t>::max() : a + b;
}

}  // namespace

Value Value::UndefinedNamed(std::string_view name) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(name)};
  return value;
}

std::string_view Value::UndefinedName() const {
  const Undefined& undefined = std::get<Undefined>(data_);
  return undefined.name == nullptr ? std::string_view("value") : *undefined.name;
}

bool Value::Truthy() const {
  if (IsUndefined() || IsNone()) return false;
  if (IsBool()) return AsBool();
  if (IsInt()) return AsInt() != 0;
  if (IsDouble()) return AsDouble() != 0.0;
  if (IsString()) return !AsString().empty();
  if (IsList()) return !AsList().items.empty();
  if (IsDict()) return !AsDict().items.empty();
  return true;
}

int Value::Depth() const {
  if (IsList()) return AsList().depth;
  if (IsDict()) return AsDict().depth;
  if (IsCallable()) return AsCallable().self.Depth() + 1;
  if (IsLoop()) return AsLoop().items->depth + 1;
  return 0;
}

size_t Value::Cost() const {
  if (IsString()) return 1 + AsString().size();
  if (IsList()) return AsList().cost;
  if (IsDict()) return AsDict().cost;
  return 1;
}

std::string_view Value::TypeName() const {
  if (IsUndefined()) return "undefined";
  if (IsNone()) return "NoneType";
  if (IsBool()) return "bool";
  if (IsInt()) return "int";
  if (IsDouble()) return "float";
  if (IsString()) return "str";
  if (IsList()) return AsList().is_tuple ? "tuple" : "list";
  if (IsDict()) return "dict";
  if (IsNamespace()) return "namespace";
  if (IsLoop()) return "loop";
  return "function";
}

void Dict::Set(Value key, Value value) {
  depth = std::max(depth, 1 + std::max(key.Depth(), value.Depth()));
  cost = SaturatingAdd(cost, SaturatingAdd(key.Cost(), value.Cost()));
  if (key.IsString()) {
    const auto [entry, is_new] = index.try_emplace(key.AsString(), items.size());
    if (!is_new) {
      items[entry->second].second = std::move(value);
      return;
    }
  } else {
    for (auto& [existing, member] : items) {
      if (Equals(existing, key)) {
        member = std::move(value);
        return;
      }
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

const Value* Dict::Find(const Value& key) const {
  if (key.IsString()) return Find(std::string_view(key.AsString()));
  for (const auto& [existing, member] : items) {
    if (Equals(existing, key)) return &member;
  }
  return nullptr;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = index.find(ToAbsl(key));
  return found == index.end() ? nullptr : &items[found->second].second;
}

absl::StatusOr<Value> MakeList(std::vector<Value> items, bool is_tuple) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) {
    list->depth = std::max(list->depth, 1 + item.Depth());
    list->cost = SaturatingAdd(list->cost, item.Cost());
  }
  if (list->depth > kMaxValueDepth) {
    return absl::InvalidArgumentError(
        Concat("a list is nested deeper than ", kMaxValueDepth, " levels"));
  }
  list->items = std::move(items);
  list->is_tuple = is_tuple;
  return Value(std::shared_ptr<const List>(std::move(list)));
}

absl::StatusOr<Value> MakeDict(Dict dict) {
  if (dict.depth > kMaxValueDepth) {
    return absl::InvalidArgumentError(
        Concat("a dict is nested deeper than ", kMaxValueDepth, " levels"));
  }
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

namespace {

absl::StatusOr<Value> StringFromJson(const std::string& text) {
  const size_t invalid = FindInvalidUtf8(text);
  if (invalid != std::string_view::npos) {
    return absl::InvalidArgumentError(Concat("a string is not valid UTF-8 at its byte ", invalid));
  }
  return Value(text);
}

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) {
    return absl::InvalidArgumentError(
        Concat("JSON is nested deeper than ", kMaxValueDepth, " levels"));
  }
  if (json.is_null()) return Value(None{});
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_unsigned() &&
      json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(
        Concat("the integer ", json.get<uint64_t>(), " does not fit into 64 bits"));
  }
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number_float()) return Value(json.get<double>());
  if (json.is_string()) return StringFromJson(json.get_ref<const std::string&>());
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const auto& item : json) {
      BATON_ASSIGN_OR_RETURN(Value value, FromJson(item, depth + 1));
      items.push_back(std::move(value));
    }
    return MakeList(std::move(items));
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, member] : json.items()) {
      BATON_ASSIGN_OR_RETURN(Value key_value, StringFromJson(key));
      BATON_ASSIGN_OR_RETURN(Value value, FromJson(member, depth + 1));
      dict.Set(std::move(key_value), std::move(value));
    }
    return MakeDict(std::move(dict));
  }
  return absl::InvalidArgumentError("binary JSON values are not supported");
}

bool ListsEqual(const List& a, const List& b) {
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), Equals);
}

bool DictsEqual(const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&b](const auto& member) {
    const Value* other = b.Find(member.first);
    return other != nullptr && Equals(member.second, *other);
  });
}

}  // namespace

absl::StatusOr<Value> ValueFromJson(const nlohmann::ordered_json& json) {
  return FromJson(json, 0);
}

bool Equals(const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsDouble() || b.IsDouble()) return a.DoubleValue() == b.DoubleValue();
    return a.IntValue() == b.IntValue();
  }
  if (a.IsString() && b.IsString()) return a.AsString() == b.AsString();
  if (a.IsList() && b.IsList()) return ListsEqual(a.AsList(), b.AsList());
  if (a.IsDict() && b.IsDict()) return DictsEqual(a.AsDict(), b.AsDict());
  if (a.IsNamespace() && b.IsNamespace()) return a.AsNamespace() == b.AsNamespace();
  return (a.IsNone() && b.IsNone()) || (a.IsUndefined() && b.IsUndefined());
}

absl::StatusOr<bool> Less(const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) {
    if (a.IsDouble() || b.IsDouble()) return a.DoubleValue() < b.DoubleValue();
    return a.IntValue() < b.IntValue();
  }
  if (a.IsString() && b.IsString()) return a.AsString() < b.AsString();
  if (a.IsList() && b.IsList()) {
    const auto& left = a.AsList().items;
    const auto& right = b.AsList().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!Equals(left[i], right[i])) return Less(left[i], right[i]);
    }
    return left.size() < right.size();
  }
  return absl::InvalidArgumentError(Concat("cannot order ", a.TypeName(), " and ", b.TypeName()));
}

}  // namespace baton::text::jinja
