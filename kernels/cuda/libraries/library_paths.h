// Where NVIDIA's libraries are on a machine: they come with a Python environment, with the CUDA
// toolkit or with the system, and in different versions.
#pragma once

#include <string>
#include <vector>

namespace baton::kernels::cuda {

// One library as its owner ships it.
struct LibraryName {
  std::string file;          // "libcudnn.so.9"
  std::string wheel_folder;  // below site-packages/nvidia: "cudnn/lib"
};

// Variables of the environment that name a file to take instead.
inline constexpr char kCudnnVariable[] = "BATON_CUDNN";
inline constexpr char kCublasLtVariable[] = "BATON_CUBLASLT";
inline constexpr char kNcclVariable[] = "BATON_NCCL";

inline const LibraryName kCudnnLibrary = {"libcudnn.so.9", "cudnn/lib"};
// Wheels of CUDA 13 share one folder.
inline const LibraryName kCublasLtLibrary = {"libcublasLt.so.13", "cu13/lib"};
inline const LibraryName kNcclLibrary = {"libnccl.so.2", "nccl/lib"};

// What of a machine decides where to look.
struct LibrarySearch {
  std::string override_file = {};  // looked at alone if set
  std::string virtual_env = {};    // folder of a Python environment, or empty
  // Folders of PATH: an environment's python3 is in its bin.
  std::vector<std::string> programs = {};
  std::string root = "/";  // in front of system folders

  // From VIRTUAL_ENV and PATH of this process, and the variable that names the override, if set.
  static LibrarySearch OfProcess(const char* override_variable);
};

// Files to try, best first: the override alone; else the Python environments, whose libraries are
// the newest, the toolkit, the system, and last the bare name for the loader's own search. Files
// that are not there are left out, but for an override and the bare name.
std::vector<std::string> LibraryPaths(const LibraryName& library, const LibrarySearch& search);

}  // namespace baton::kernels::cuda
