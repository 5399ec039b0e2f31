#include "common/eval/read_cases.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/eval/json_lines.h"
#include "common/text/bounded_json.h"

namespace baton::eval {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxLineBytes = 16 << 20;
constexpr size_t kMaxCases = 1'000'000;
constexpr int32_t kMaxTokens = 1 << 30;
constexpr text::JsonLimits kLimits = {
    .max_bytes = kMaxLineBytes, .max_depth = 32, .max_members = 1 << 16};

absl::Status FieldError(const char* name, const char* expected) {
  return absl::InvalidArgumentError(absl::StrCat("field `", name, "` must be ", expected));
}

absl::StatusOr<std::string> StringField(const ordered_json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_string()) {
    return FieldError(name, "a string");
  }
  return it->get<std::string>();
}

absl::StatusOr<int32_t> CountField(const ordered_json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_number_unsigned() || it->get<uint64_t>() > kMaxTokens) {
    return FieldError(name, "an integer >= 0");
  }
  return static_cast<int32_t>(it->get<uint64_t>());
}

absl::Status CheckMessages(const ordered_json& messages) {
  bool valid = messages.is_array() && !messages.empty();
  for (size_t i = 0; valid && i < messages.size(); ++i) {
    const ordered_json& message = messages[i];
    valid = message.is_object() && message.contains("role") && message["role"].is_string() &&
            message.contains("content") && message["content"].is_string();
  }
  return valid ? absl::OkStatus() : FieldError("messages", "a list of {role, content}");
}

absl::Status ReadFollowUps(const ordered_json& object, std::vector<FollowUp>& follow_ups) {
  const auto it = object.find("follow_ups");
  if (it == object.end()) {
    return absl::OkStatus();
  }
  if (!it->is_array()) {
    return FieldError("follow_ups", "a list of {question, answer}");
  }
  for (const ordered_json& item : *it) {
    FollowUp follow_up;
    if (!item.is_object()) {
      return FieldError("follow_ups", "a list of {question, answer}");
    }
    BATON_ASSIGN_OR_RETURN(follow_up.question, StringField(item, "question"));
    BATON_ASSIGN_OR_RETURN(follow_up.answer, StringField(item, "answer"));
    follow_ups.push_back(std::move(follow_up));
  }
  return absl::OkStatus();
}

absl::Status ReadFileCases(const std::string& path, std::vector<EvalCase>& cases) {
  return ForEachLine(path, [&](std::string_view line) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(EvalCase parsed, ParseCase(line));
    cases.push_back(std::move(parsed));
    if (cases.size() > kMaxCases) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxCases, " cases"));
    }
    return absl::OkStatus();
  });
}

bool IsCaseFile(const std::string& name) {
  return name.ends_with(".jsonl") || name.ends_with(".jsonl.gz");
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return std::vector<std::string>{path};
  }
  std::vector<std::string> files;
  fs::directory_iterator it(path, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (IsCaseFile(it->path().filename().string())) {
      files.push_back(it->path().string());
    }
  }
  if (error || files.empty()) {
    return absl::NotFoundError(absl::StrCat(path, " holds no *.jsonl or *.jsonl.gz file"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::Status CheckUnique(const std::vector<EvalCase>& cases) {
  std::unordered_set<std::string_view> ids;
  for (const EvalCase& eval_case : cases) {
    if (!ids.insert(eval_case.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("case id ", eval_case.id, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EvalCase> ParseCase(std::string_view line) {
  BATON_ASSIGN_OR_RETURN(ordered_json object, text::ParseBoundedOrderedJson(line, kLimits));
  if (!object.is_object()) {
    return absl::InvalidArgumentError("is not a JSON object");
  }
  EvalCase result;
  BATON_ASSIGN_OR_RETURN(result.id, StringField(object, "id"));
  BATON_ASSIGN_OR_RETURN(result.task, StringField(object, "task"));
  BATON_ASSIGN_OR_RETURN(result.answer, StringField(object, "answer"));
  BATON_ASSIGN_OR_RETURN(result.length_bucket, CountField(object, "length_bucket"));
  BATON_ASSIGN_OR_RETURN(result.max_new_tokens, CountField(object, "max_new_tokens"));
  BATON_ASSIGN_OR_RETURN(result.prompt_tokens, CountField(object, "prompt_tokens"));
  const auto messages = object.find("messages");
  if (messages == object.end()) {
    return FieldError("messages", "a list of {role, content}");
  }
  BATON_RETURN_IF_ERROR(CheckMessages(*messages));
  result.messages = std::move(*messages);
  BATON_RETURN_IF_ERROR(ReadFollowUps(object, result.follow_ups));
  return result;
}

absl::StatusOr<std::vector<EvalCase>> ReadCases(std::string_view paths) {
  std::vector<EvalCase> cases;
  while (!paths.empty()) {
    const size_t comma = std::min(paths.find(','), paths.size());
    const std::string path(paths.substr(0, comma));
    BATON_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(path));
    for (const std::string& file : files) {
      BATON_RETURN_IF_ERROR(ReadFileCases(file, cases));
    }
    paths.remove_prefix(std::min(comma + 1, paths.size()));
  }
  BATON_RETURN_IF_ERROR(CheckUnique(cases));
  return cases;
}

}  // namespace baton::eval
