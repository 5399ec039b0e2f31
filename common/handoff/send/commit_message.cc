#include "common/handoff/send/commit_message.h"

namespace baton::handoff {
namespace {

void FillToken(const engine::TokenOutput& output, worker::v1::Token& token) {
  token.set_id(static_cast<uint32_t>(output.token_id));
  token.set_logprob(output.logprob);
  for (const auto& [id, logprob] : output.top_logprobs) {
    worker::v1::TopLogprob& top = *token.add_top_logprobs();
    top.set_token_id(static_cast<uint32_t>(id));
    top.set_logprob(logprob);
  }
}

void FillFinished(const engine::SequenceFinish& finish, worker::v1::SequenceFinished& finished) {
  finished.set_reason(finish.reason == engine::FinishReason::kStop
                          ? worker::v1::FINISH_REASON_STOP
                          : worker::v1::FINISH_REASON_LENGTH);
  if (finish.stop_token_id.has_value()) {
    finished.set_stop_token_id(static_cast<uint32_t>(*finish.stop_token_id));
  }
}

}  // namespace

void FillCommit(const engine::CommitInfo& info, worker::v1::Commit& commit) {
  for (size_t i = 0; i < info.first_tokens.size(); ++i) {
    worker::v1::TokenDelta& delta = *commit.add_first_tokens();
    delta.set_index(static_cast<uint32_t>(i));
    FillToken(info.first_tokens[i], *delta.add_tokens());
  }
  for (size_t i = 0; i < info.finished.size(); ++i) {
    if (info.finished[i].has_value()) {
      worker::v1::SequenceFinished& finished = *commit.add_finished();
      finished.set_index(static_cast<uint32_t>(i));
      FillFinished(*info.finished[i], finished);
    }
  }
  commit.set_kv_state(info.kv_state);
  commit.set_prompt_token_bitmap(info.prompt_token_bitmap.data(), info.prompt_token_bitmap.size());
}

}  // namespace baton::handoff
