#include "kernels/ops/op_table.h"

#include <string>

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
