#include "common/eval/result_row.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/text/bounded_json.h"

namespace baton::eval {
namespace {

using nlohmann::ordered_json;

constexpr text::JsonLimits kLimits = {
    .max_bytes = 16 << 20, .max_depth = 8, .max_members = 1 << 10};

bool IsCountList(const ordered_json& field) {
  return field.is_array() && std::ranges::all_of(field, [](const ordered_json& id) {
           return id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX;
         });
}

// Reads fields one after another and remembers the first that is wrong.
class Reader {
 public:
  explicit Reader(const ordered_json& object) : object_(object) {}

  void Read(const char* name, std::string& value) {
    const ordered_json* field = Find(name, [](const auto& f) { return f.is_string(); });
    value = field == nullptr ? "" : field->get<std::string>();
  }
  void Read(const char* name, bool& value) {
    const ordered_json* field = Find(name, [](const auto& f) { return f.is_boolean(); });
    value = field != nullptr && field->get<bool>();
  }
  void Read(const char* name, int64_t& value) {
    const ordered_json* field = Find(name, [](const auto& f) { return f.is_number_integer(); });
    value = field == nullptr ? 0 : field->get<int64_t>();
  }
  void Read(const char* name, std::vector<int32_t>& value) {
    const ordered_json* field = Find(name, IsCountList);
    value = field == nullptr ? std::vector<int32_t>() : field->get<std::vector<int32_t>>();
  }
  void Read(const char* name, std::vector<std::vector<int32_t>>& value) {
    const ordered_json* field = Find(
        name, [](const auto& f) { return f.is_array() && std::ranges::all_of(f, IsCountList); });
    value = field == nullptr ? std::vector<std::vector<int32_t>>()
                             : field->get<std::vector<std::vector<int32_t>>>();
  }
  void Read(const char* name, double& value) {
    const ordered_json* field = Find(name, [](const auto& f) { return f.is_number(); });
    value = field == nullptr ? 0 : field->get<double>();
  }
  // Leaves `value` as it is when there is no such field.
  template <typename T>
  void ReadOptional(const char* name, T& value) {
    if (object_.contains(name)) {
      Read(name, value);
    }
  }
  template <typename T>
  void ReadOptional(const char* name, std::optional<T>& value) {
    if (object_.contains(name)) {
      Read(name, value.emplace());
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  template <typename IsType>
  const ordered_json* Find(const char* name, IsType is_type) {
    const auto it = object_.find(name);
    if (it != object_.end() && is_type(*it)) {
      return &*it;
    }
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("field `", name, "` is missing or of the wrong type"));
    }
    return nullptr;
  }

  const ordered_json& object_;
  absl::Status status_;
};

}  // namespace

ResultRow AnsweredRow(const EvalCase& eval_case, std::string output) {
  ResultRow row;
  row.id = eval_case.id;
  row.task = eval_case.task;
  row.length_bucket = eval_case.length_bucket;
  row.correct = IsCorrect(eval_case, output);
  row.output = std::move(output);
  return row;
}

std::string ToJsonLine(const ResultRow& row) {
  ordered_json object = {{"id", row.id},
                         {"task", row.task},
                         {"length_bucket", row.length_bucket},
                         {"output", row.output},
                         {"token_ids", row.token_ids},
                         {"correct", row.correct},
                         {"prompt_tokens", row.prompt_tokens},
                         {"completion_tokens", row.completion_tokens},
                         {"kv_logical_bytes", row.kv_logical_bytes},
                         {"kv_wire_bytes", row.kv_wire_bytes},
                         {"kv_resident_bytes", row.kv_resident_bytes},
                         {"cached_tokens", row.cached_tokens},
                         {"ttft_ms", row.ttft_ms},
                         {"total_ms", row.total_ms},
                         {"kv", row.kv}};
  if (row.attended_share.has_value()) {
    object["attended_share"] = *row.attended_share;
  }
  if (row.hit_share.has_value()) {
    object["hit_share"] = *row.hit_share;
  }
  if (row.kv_slot_bytes.has_value()) {
    object["kv_slot_bytes"] = *row.kv_slot_bytes;
  }
  if (!row.tier_tokens.empty()) {
    object["tier_tokens"] = row.tier_tokens;
  }
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

absl::StatusOr<ResultRow> ParseResultRow(std::string_view line) {
  BATON_ASSIGN_OR_RETURN(const ordered_json object, text::ParseBoundedOrderedJson(line, kLimits));
  if (!object.is_object()) {
    return absl::InvalidArgumentError("is not a JSON object");
  }
  ResultRow row;
  int64_t length_bucket = 0;
  Reader reader(object);
  reader.Read("id", row.id);
  reader.Read("task", row.task);
  reader.Read("length_bucket", length_bucket);
  reader.Read("output", row.output);
  reader.Read("token_ids", row.token_ids);
  reader.Read("correct", row.correct);
  reader.Read("prompt_tokens", row.prompt_tokens);
  reader.Read("completion_tokens", row.completion_tokens);
  reader.Read("kv_logical_bytes", row.kv_logical_bytes);
  reader.Read("kv_wire_bytes", row.kv_wire_bytes);
  reader.Read("kv_resident_bytes", row.kv_resident_bytes);
  reader.ReadOptional("cached_tokens", row.cached_tokens);
  reader.Read("ttft_ms", row.ttft_ms);
  reader.Read("total_ms", row.total_ms);
  reader.ReadOptional("kv", row.kv);
  reader.ReadOptional("attended_share", row.attended_share);
  reader.ReadOptional("hit_share", row.hit_share);
  reader.ReadOptional("kv_slot_bytes", row.kv_slot_bytes);
  reader.ReadOptional("tier_tokens", row.tier_tokens);
  BATON_RETURN_IF_ERROR(reader.status());
  if (length_bucket < 0 || length_bucket > INT32_MAX) {
    return absl::InvalidArgumentError("field `length_bucket` is out of range");
  }
  row.length_bucket = static_cast<int32_t>(length_bucket);
  return row;
}

}  // namespace baton::eval
