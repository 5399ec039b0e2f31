// Dense pages as decode finds them.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/core/exec_context.h"
#include "tests/gpu/bench/model_pages.h"

namespace baton::model {

// Room for so many tokens in every layer of Llama-3.1-8B, in pages of the size that workers have
// (--page_tokens), with values as large as keys and values are. Waits for the queue.
absl::StatusOr<ModelPages> MakeFilledPages(const kernels::ExecContext& exec, int64_t tokens);

}  // namespace baton::model
