#include "common/checkpoint/safetensors_writer.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <ios>
#include <span>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"
#include "common/checkpoint/stored_dtype.h"
#include "common/checkpoint/tensor_view.h"
#include "kernels/core/dtype.h"
#include "kernels/core/round_up.h"

namespace baton::checkpoint {
namespace {

constexpr size_t kDataAlignment = 8;

absl::Status WriteError(const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot write ", path, ": ", std::generic_category().message(errno)));
}

}  // namespace

absl::StatusOr<std::string> SafetensorsPreamble(std::span<const NamedTensor> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  uint64_t offset = 0;
  for (const NamedTensor& named : tensors) {
    const TensorView& tensor = named.tensor;
    const uint64_t bytes = tensor.bytes.size();
    if (header.contains(named.name)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor `", named.name, "` is given twice"));
    }
    if (static_cast<uint64_t>(tensor.num_elements()) * kernels::DTypeBytes(tensor.dtype) != bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor `", named.name, "`: bytes do not match shape and dtype"));
    }
    header[named.name] = {{"dtype", std::string(StoredDTypeName(tensor.dtype))},
                          {"shape", tensor.shape},
                          {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  // Names may hold bytes that are not UTF-8; they are replaced rather than thrown on.
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize(kernels::RoundUp(text.size(), kDataAlignment), ' ');
  const uint64_t header_bytes = text.size();
  std::string preamble(sizeof(header_bytes), '\0');
  std::memcpy(preamble.data(), &header_bytes, sizeof(header_bytes));
  return preamble + text;
}

absl::Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors) {
  BATON_ASSIGN_OR_RETURN(const std::string preamble, SafetensorsPreamble(tensors));
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out.write(preamble.data(), static_cast<std::streamsize>(preamble.size()));
  for (const NamedTensor& named : tensors) {
    out.write(reinterpret_cast<const char*>(named.tensor.bytes.data()),
              static_cast<std::streamsize>(named.tensor.bytes.size()));
  }
  out.close();
  if (!out) {
    const absl::Status status = WriteError(temporary);
    std::remove(temporary.c_str());
    return status;
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return WriteError(path);
  }
  return absl::OkStatus();
}

}  // namespace baton::checkpoint
