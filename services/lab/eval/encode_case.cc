#include "services/lab/eval/encode_case.h"

#include <vector>

#include "absl/time/clock.h"

#include "common/eval/eval_case.h"
#include "common/text/chat.h"
#include "common/text/load_tokenizer.h"

namespace baton::lab {

absl::StatusOr<std::vector<int32_t>> EncodeCase(const eval::EvalCase& eval_case,
                                                const text::ModelTokenizer& tokenizer) {
  text::ChatRequest chat;
  chat.messages = eval_case.messages;
  return text::EncodeChat(tokenizer, chat, absl::Now());
}

}  // namespace baton::lab
