#include "kernels/ops/op_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::kernels {

absl::Status CheckComplete(const OpTable& table) {
  struct Entry {
    const char* name;
    bool filled;
  };
  const Entry entries[] = {
      {"packed_matrix_bytes", table.packed_matrix_bytes != nullptr},
      {"pack_matrix", table.pack_matrix != nullptr},
      {"workspace_bytes", table.workspace_bytes != nullptr},
      {"embed", table.embed != nullptr},
      {"rms_norm", table.rms_norm != nullptr},
      {"matmul", table.matmul != nullptr},
      {"rope_angles", table.rope_angles != nullptr},
      {"rope", table.rope != nullptr},
      {"kv_write", table.kv_write != nullptr},
      {"paged_attention", table.paged_attention != nullptr},
      {"silu_mul", table.silu_mul != nullptr},
      {"gather_rows", table.gather_rows != nullptr},
      {"copy_pages", table.copy_pages != nullptr},
      {"top_logits", table.top_logits != nullptr},
      {"attention_probabilities", table.attention_probabilities != nullptr},
      {"accumulate_scores", table.accumulate_scores != nullptr},
      {"diffkv_classify", table.diffkv_classify != nullptr},
      {"diffkv_assign_pages", table.diffkv_assign_pages != nullptr},
      {"diffkv_release_pages", table.diffkv_release_pages != nullptr},
      {"diffkv_encode", table.diffkv_encode != nullptr},
      {"diffkv_sweep", table.diffkv_sweep != nullptr},
      {"diffkv_take_pages", table.diffkv_take_pages != nullptr},
      {"diffkv_append", table.diffkv_append != nullptr},
      {"diffkv_attention", table.diffkv_attention != nullptr},
      {"shadowkv_workspace_bytes", table.shadowkv_workspace_bytes != nullptr},
      {"shadowkv_encode", table.shadowkv_encode != nullptr},
      {"shadowkv_encode_joint", table.shadowkv_encode_joint != nullptr},
      {"shadowkv_append", table.shadowkv_append != nullptr},
      {"shadowkv_append_joint", table.shadowkv_append_joint != nullptr},
      {"shadowkv_select", table.shadowkv_select != nullptr},
      {"shadowkv_attention", table.shadowkv_attention != nullptr},
      {"fp8_encode", table.fp8_encode != nullptr},
      {"hidden_encode", table.hidden_encode != nullptr},
      {"hidden_decode", table.hidden_decode != nullptr},
  };
  for (const Entry& entry : entries) {
    if (!entry.filled) {
      return absl::InternalError(
          absl::StrCat("op table \"", table.name, "\" has no entry for ", entry.name));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kernels
