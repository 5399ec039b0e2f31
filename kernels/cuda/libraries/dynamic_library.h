// A shared library that is looked for when the program runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace baton::kernels::cuda {

// Owns a handle of the dynamic loader; never unloads, because libraries of a device driver do not
// stand it. Copies share the handle. Thread-safe once open.
class DynamicLibrary {
 public:
  // Opens the first of `paths` that can be loaded; a name without a slash is looked for by the
  // loader. kNotFound with what was tried and why each did not do.
  static absl::StatusOr<DynamicLibrary> Open(const std::vector<std::string>& paths);

  // Sets `function` to the symbol's address; kNotFound, naming library and symbol, without one.
  template <typename Function>
  absl::Status Resolve(const char* symbol, Function*& function) const {
    function = reinterpret_cast<Function*>(Find(symbol));
    if (function == nullptr) {
      return absl::NotFoundError(absl::StrCat(path_, " has no function ", symbol));
    }
    return absl::OkStatus();
  }

  // The file that was loaded, as the loader knows it.
  const std::string& path() const { return path_; }

 private:
  DynamicLibrary(void* handle, std::string path);
  void* Find(const char* symbol) const;

  void* handle_;
  std::string path_;
};

}  // namespace baton::kernels::cuda
