#include "kernels/cuda/libraries/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace baton::kernels::cuda {
namespace {

std::string LoadedPath(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  const bool known =
      dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr;
  return known && map->l_name != nullptr && *map->l_name != '\0' ? map->l_name : asked;
}

}  // namespace

DynamicLibrary::DynamicLibrary(void* handle, std::string path)
    : handle_(handle), path_(std::move(path)) {}

absl::StatusOr<DynamicLibrary> DynamicLibrary::Open(const std::vector<std::string>& paths) {
  std::string tried;
  for (const std::string& path : paths) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle != nullptr) {
      return DynamicLibrary(handle, LoadedPath(handle, path));
    }
    // dlerror gives null only if nothing failed.
    const char* error = dlerror();
    absl::StrAppend(&tried, "\n  ", path, ": ", error == nullptr ? "unknown error" : error);
  }
  return absl::NotFoundError(absl::StrCat("no library could be loaded; tried:", tried));
}

void* DynamicLibrary::Find(const char* symbol) const { return dlsym(handle_, symbol); }

}  // namespace baton::kernels::cuda
