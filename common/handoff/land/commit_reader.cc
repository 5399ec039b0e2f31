#include "common/handoff/land/commit_reader.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::handoff {
namespace {

// Top logprobs of one token that are believed; the API allows fewer.
constexpr int kMaxTopLogprobs = 1024;

absl::StatusOr<int32_t> ReadTokenId(uint32_t id) {
  if (id > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("commit: ", id, " is no token id"));
  }
  return static_cast<int32_t>(id);
}

absl::StatusOr<engine::TokenOutput> ReadToken(const worker::v1::Token& token) {
  if (token.top_logprobs_size() > kMaxTopLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit: ", token.top_logprobs_size(), " top logprobs of one token"));
  }
  engine::TokenOutput output;
  BATON_ASSIGN_OR_RETURN(output.token_id, ReadTokenId(token.id()));
  output.logprob = token.logprob();
  for (const worker::v1::TopLogprob& top : token.top_logprobs()) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, ReadTokenId(top.token_id()));
    output.top_logprobs.emplace_back(id, top.logprob());
  }
  return output;
}

absl::StatusOr<engine::SequenceFinish> ReadFinish(const worker::v1::SequenceFinished& finished) {
  engine::SequenceFinish finish;
  switch (finished.reason()) {
    case worker::v1::FINISH_REASON_STOP:
      finish.reason = engine::FinishReason::kStop;
      break;
    case worker::v1::FINISH_REASON_LENGTH:
      finish.reason = engine::FinishReason::kLength;
      break;
    default:
      return absl::InvalidArgumentError("commit: a sequence finished without a known reason");
  }
  if (finished.has_stop_token_id()) {
    BATON_ASSIGN_OR_RETURN(finish.stop_token_id, ReadTokenId(finished.stop_token_id()));
  }
  return finish;
}

}  // namespace

absl::StatusOr<engine::CommitInfo> ReadCommit(const worker::v1::Commit& commit) {
  const int sequences = commit.first_tokens_size();
  if (sequences == 0 || sequences > engine::kMaxSequences) {
    return absl::InvalidArgumentError(absl::StrCat(
        "commit: ", sequences, " first tokens; 1..", engine::kMaxSequences, " are allowed"));
  }
  engine::CommitInfo info;
  info.first_tokens.resize(static_cast<size_t>(sequences));
  info.finished.resize(static_cast<size_t>(sequences));
  std::vector<bool> seen(static_cast<size_t>(sequences));
  for (const worker::v1::TokenDelta& delta : commit.first_tokens()) {
    const uint32_t index = delta.index();
    if (index >= seen.size() || seen[index] || delta.tokens_size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit: one first token per sequence is wanted; sequence ",
                       index,
                       " has another number"));
    }
    seen[index] = true;
    BATON_ASSIGN_OR_RETURN(info.first_tokens[index], ReadToken(delta.tokens(0)));
  }
  for (const worker::v1::SequenceFinished& finished : commit.finished()) {
    const uint32_t index = finished.index();
    if (index >= seen.size() || info.finished[index].has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit: sequence ", index, " finishes twice or does not exist"));
    }
    BATON_ASSIGN_OR_RETURN(info.finished[index], ReadFinish(finished));
  }
  info.prompt_token_bitmap.assign(commit.prompt_token_bitmap().begin(),
                                  commit.prompt_token_bitmap().end());
  info.kv_state = commit.kv_state();
  return info;
}

}  // namespace baton::handoff
