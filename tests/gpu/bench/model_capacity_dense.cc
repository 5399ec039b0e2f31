#include "tests/gpu/bench/model_capacity_dense.h"

#include <cstdint>
#include <utility>

#include "absl/status/status.h"

#include "common/base/status_macros.h"
#include "tests/gpu/bench/model_filled_pages.h"
#include "tests/gpu/bench/model_pages.h"
#include "tests/gpu/bench/model_sequences.h"
#include "tests/gpu/bench/model_subject.h"

namespace baton::model {

absl::Status DenseCapacityCase::Make(int32_t sequences) {
  count_ = sequences;
  BATON_ASSIGN_OR_RETURN(ModelPages pages,
                         MakeFilledPages(loaded_.exec, int64_t{sequences} * tokens_));
  pages_.emplace(std::move(pages));
  subject_.emplace(ModelSubject{loaded_, *pages_});
  BATON_ASSIGN_OR_RETURN(ModelSequences made, ModelSequences::Create(*subject_, count_, tokens_));
  sequences_.emplace(std::move(made));
  return absl::OkStatus();
}

}  // namespace baton::model
