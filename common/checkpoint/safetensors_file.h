// One safetensors file, mapped.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "common/checkpoint/mapped_file.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/checkpoint/tensor_view.h"

namespace baton::checkpoint {

// Read-only and thread-safe after Open; views borrow its memory map. Move-only.
class SafetensorsFile {
 public:
  // Maps `path` and checks its header. Errors name the file. A symbolic link or large-file pointer
  // that was checked out as text is recognised, with what to do about it.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Names, ascending.
  std::vector<std::string> Names() const;
  bool Has(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  // Null when the file has no such tensor.
  const SafetensorsEntry* Find(std::string_view name) const;
  // kNotFound when there is no such tensor; kUnimplemented naming a dtype that can't be read.
  absl::StatusOr<TensorView> View(std::string_view name) const;

 private:
  std::string path_;
  MappedFile file_;
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
};

}  // namespace baton::checkpoint
