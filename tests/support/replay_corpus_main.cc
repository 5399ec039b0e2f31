// Runs a fuzzer's entry point over every file of the folders given as arguments, for builds without
// libFuzzer. Fails when a folder cannot be read or when there is no file at all.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

int ReplayFolder(const char* folder) {
  int num_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)),
                            std::istreambuf_iterator<char>());
    std::printf("%s (%zu bytes)\n", entry.path().c_str(), bytes.size());
    std::fflush(stdout);  // so that the last line names the file that crashed
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++num_files;
  }
  return num_files;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int num_files = 0;
    for (int i = 1; i < argc; ++i) num_files += ReplayFolder(argv[i]);
    std::printf("%d files\n", num_files);
    return num_files > 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
