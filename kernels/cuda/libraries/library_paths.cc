#include "kernels/cuda/libraries/library_paths.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace baton::kernels::cuda {
namespace {

namespace fs = std::filesystem;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets it
  return value == nullptr ? "" : value;
}

// The folders python3* below `lib`, in the order of their names.
std::vector<fs::path> PythonFolders(const fs::path& lib) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(lib, ignored)) {
    if (absl::StartsWith(entry.path().filename().string(), "python3")) {
      folders.push_back(entry.path());
    }
  }
  std::ranges::sort(folders);
  return folders;
}

class Candidates {
 public:
  explicit Candidates(const LibraryName& library) : library_(library) {}

  void AddFile(const fs::path& folder) {
    std::error_code ignored;
    const fs::path file = folder / library_.file;
    const std::string text = file.lexically_normal().string();
    if (fs::exists(file, ignored) && std::ranges::find(files_, text) == files_.end()) {
      files_.push_back(text);
    }
  }
  // Packages of a Python installation whose `lib` folder is given.
  void AddPython(const fs::path& lib) {
    for (const fs::path& python : PythonFolders(lib)) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        AddFile(python / packages / "nvidia" / library_.wheel_folder);
      }
    }
  }
  std::vector<std::string> TakeWithBareName() {
    files_.push_back(library_.file);
    return std::move(files_);
  }

 private:
  const LibraryName& library_;
  std::vector<std::string> files_;
};

}  // namespace

LibrarySearch LibrarySearch::OfProcess(const char* override_variable) {
  return {.override_file = Environment(override_variable),
          .virtual_env = Environment("VIRTUAL_ENV"),
          .programs = absl::StrSplit(Environment("PATH"), ':', absl::SkipEmpty())};
}

std::vector<std::string> LibraryPaths(const LibraryName& library, const LibrarySearch& search) {
  if (!search.override_file.empty()) {
    return {search.override_file};
  }
  Candidates candidates(library);
  if (!search.virtual_env.empty()) {
    candidates.AddPython(fs::path(search.virtual_env) / "lib");
  }
  for (const std::string& folder : search.programs) {
    candidates.AddPython(fs::path(folder).parent_path() / "lib");
  }
  const fs::path root = search.root;
  candidates.AddPython(root / "usr/local/lib");
  candidates.AddFile(root / "usr/local/cuda/lib64");
  candidates.AddFile(root / "usr/lib/x86_64-linux-gnu");
  candidates.AddFile(root / "usr/lib64");
  return candidates.TakeWithBareName();
}

}  // namespace baton::kernels::cuda
