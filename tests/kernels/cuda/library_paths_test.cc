// Where libraries are looked for, in folders made for the purpose.
#include "kernels/cuda/libraries/library_paths.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/cuda/libraries/dynamic_library.h"

namespace baton::kernels::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LibraryPathsTest : public ::testing::Test {
 protected:
  LibraryPathsTest() {
    std::string name = (fs::temp_directory_path() / "baton-libraries-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~LibraryPathsTest() override { fs::remove_all(root_); }

  std::string Make(const std::string& path) const {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "x";
    return file.string();
  }
  std::vector<std::string> Paths(const LibrarySearch& search) const {
    return LibraryPaths(kCudnnLibrary, search);
  }

  fs::path root_;
};

TEST_F(LibraryPathsTest, EnvironmentsComeBeforeTheToolkitAndTheSystem) {
  const std::string system = Make("usr/lib/x86_64-linux-gnu/libcudnn.so.9");
  const std::string toolkit = Make("usr/local/cuda/lib64/libcudnn.so.9");
  const std::string on_path =
      Make("opt/env/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9");
  const std::string active =
      Make("home/env/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9");
  EXPECT_THAT(Paths({.virtual_env = (root_ / "home/env").string(),
                     .programs = {(root_ / "opt/env/bin").string(), (root_ / "none/bin").string()},
                     .root = root_.string()}),
              ElementsAre(active, on_path, toolkit, system, "libcudnn.so.9"));
}

TEST_F(LibraryPathsTest, AnOverrideIsLookedAtAlone) {
  Make("usr/lib/x86_64-linux-gnu/libcudnn.so.9");
  EXPECT_THAT(Paths({.override_file = "/my/libcudnn.so", .root = root_.string()}),
              ElementsAre("/my/libcudnn.so"));
}

TEST_F(LibraryPathsTest, TheProcessNamesTheOverrideInAVariable) {
  EXPECT_EQ(LibrarySearch::OfProcess(kCudnnVariable).override_file, "");
  ASSERT_EQ(setenv(kCudnnVariable, "/my/libcudnn.so", /*overwrite=*/1), 0);
  EXPECT_EQ(LibrarySearch::OfProcess(kCudnnVariable).override_file, "/my/libcudnn.so");
  EXPECT_EQ(LibrarySearch::OfProcess(kCublasLtVariable).override_file, "");
  ASSERT_EQ(unsetenv(kCudnnVariable), 0);
}

TEST_F(LibraryPathsTest, AnEmptyMachineLeavesTheLoadersOwnSearch) {
  EXPECT_THAT(Paths({.root = root_.string()}), ElementsAre("libcudnn.so.9"));
}

TEST_F(LibraryPathsTest, WhatCannotBeLoadedIsNamedWithTheReason) {
  const std::string broken = Make("libbroken.so");
  const auto library = DynamicLibrary::Open({broken, "libnone-of-baton.so"});
  ASSERT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(library.status().message(), HasSubstr(broken + ": "));
  EXPECT_THAT(library.status().message(), HasSubstr("libnone-of-baton.so: "));
}

TEST(DynamicLibraryTest, FindsFunctionsAndNamesThoseThatAreMissing) {
  const auto library = DynamicLibrary::Open({"libm.so.6"});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_TRUE(absl::StrContains(library->path(), "/libm.so.6")) << library->path();
  double (*cosine)(double) = nullptr;
  ASSERT_TRUE(library->Resolve("cos", cosine).ok());
  EXPECT_EQ(cosine(0.0), 1.0);
  void (*none)() = nullptr;
  EXPECT_THAT(library->Resolve("no_such_function", none).message(),
              HasSubstr("has no function no_such_function"));
}

}  // namespace
}  // namespace baton::kernels::cuda
