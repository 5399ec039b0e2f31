#include "services/loadtest/workload/share_gpt.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/eval/json_lines.h"
#include "common/text/bounded_json.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {
namespace {

using inference::v1::GenerateRequest;

constexpr size_t kMaxConversations = 1'000'000;
constexpr text::JsonLimits kLimits = {
    .max_bytes = 16 << 20, .max_depth = 8, .max_members = 1 << 16};

absl::Status TakeTurn(const nlohmann::json& turn, RecordedConversation* conversation) {
  const auto is_text = [&turn](const char* name) {
    return turn.contains(name) && turn[name].is_string();
  };
  if (!turn.is_object() || !is_text("from") || !is_text("value")) {
    return absl::InvalidArgumentError("field `conversations` must be a list of {from, value}");
  }
  const auto from = turn["from"].get<std::string>();
  if (from == "human" || from == "user") {
    conversation->questions.push_back(turn["value"].get<std::string>());
  } else if (from == "system" && conversation->questions.empty()) {
    conversation->system = turn["value"].get<std::string>();
  }
  return absl::OkStatus();
}

void AddMessage(const char* role, std::string content, GenerateRequest* request) {
  inference::v1::Message* message = request->mutable_chat()->add_messages();
  message->set_role(role);
  message->set_content(std::move(content));
}

class RecordedChat final : public Conversation {
 public:
  RecordedChat(const RecordedConversation* recorded, int64_t turns, GenerateRequest request)
      : recorded_(recorded),
        turns_(std::min(static_cast<size_t>(turns), recorded->questions.size())),
        request_(std::move(request)) {
    if (!recorded_->system.empty()) {
      AddMessage("system", recorded_->system, &request_);
    }
  }

  std::optional<GenerateRequest> NextTurn(const Answer* previous) override {
    if (next_ == turns_) {
      return std::nullopt;
    }
    if (previous != nullptr) {
      AddMessage("assistant", previous->text, &request_);
    }
    AddMessage("user", recorded_->questions[next_++], &request_);
    return request_;
  }
  bool wants_answer() const override { return next_ < turns_; }
  std::string id() const override { return recorded_->id; }

 private:
  const RecordedConversation* const recorded_;
  const size_t turns_;
  GenerateRequest request_;  // with the conversation so far
  size_t next_ = 0;
};

class RecordedWorkload final : public Workload {
 public:
  RecordedWorkload(std::vector<RecordedConversation> recorded, const RecordedOptions& options)
      : recorded_(std::move(recorded)), options_(options), random_(options.seed) {}

  std::unique_ptr<Conversation> Next() override {
    if (next_ == recorded_.size()) {
      if (!options_.repeat) {
        return nullptr;
      }
      next_ = 0;
    }
    GenerateRequest request;
    request.mutable_stopping()->set_max_tokens(
        static_cast<uint32_t>(options_.output.Sample(random_)));
    request.mutable_stopping()->set_ignore_eos(options_.ignore_eos);
    return std::make_unique<RecordedChat>(&recorded_[next_++], options_.turns, std::move(request));
  }
  int64_t Remaining() const override {
    return options_.repeat ? kEndless : static_cast<int64_t>(recorded_.size() - next_);
  }

 private:
  const std::vector<RecordedConversation> recorded_;
  const RecordedOptions options_;
  std::mt19937_64 random_;
  size_t next_ = 0;
};

absl::Status AddConversation(std::string_view line, RecordedFile* file) {
  absl::StatusOr<RecordedConversation> conversation = ParseShareGpt(line);
  if (absl::IsNotFound(conversation.status())) {
    ++file->left_out;
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(conversation.status());
  file->conversations.push_back(*std::move(conversation));
  return file->conversations.size() <= kMaxConversations
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("more than ", kMaxConversations, " conversations"));
}

}  // namespace

absl::StatusOr<RecordedConversation> ParseShareGpt(std::string_view line) {
  BATON_ASSIGN_OR_RETURN(const nlohmann::json object, text::ParseBoundedJson(line, kLimits));
  if (!object.is_object() || !object.contains("conversations") ||
      !object["conversations"].is_array()) {
    return absl::InvalidArgumentError("is not an object with a list `conversations`");
  }
  RecordedConversation conversation;
  if (object.contains("id") && object["id"].is_string()) {
    conversation.id = object["id"].get<std::string>();
  }
  for (const nlohmann::json& turn : object["conversations"]) {
    BATON_RETURN_IF_ERROR(TakeTurn(turn, &conversation));
  }
  if (conversation.questions.empty()) {
    return absl::NotFoundError("field `conversations` has no turn from \"human\"");
  }
  return conversation;
}

absl::StatusOr<RecordedFile> ReadShareGpt(const std::string& path) {
  RecordedFile file;
  BATON_RETURN_IF_ERROR(eval::ForEachLine(
      path, [&file](std::string_view line) { return AddConversation(line, &file); }));
  if (file.conversations.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " holds no conversation to send; ", file.left_out, " have no turn from \"human\""));
  }
  return file;
}

std::unique_ptr<Workload> MakeRecordedWorkload(std::vector<RecordedConversation> recorded,
                                               const RecordedOptions& options) {
  return std::make_unique<RecordedWorkload>(std::move(recorded), options);
}

}  // namespace baton::loadtest
