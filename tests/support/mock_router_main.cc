// mock_router [FIRST_TOKEN [TOKEN_INTERVAL]]: a MockRouter until standard input ends. Prints its
// address. The pauses are durations such as 50ms.
#include <iostream>
#include <string>

#include "absl/time/time.h"

#include "tests/support/mock_router.h"

int main(int argc, char** argv) {
  baton::testing::MockRouterOptions options;
  if ((argc > 1 && !absl::ParseDuration(argv[1], &options.first_token)) ||
      (argc > 2 && !absl::ParseDuration(argv[2], &options.token_interval))) {
    std::cerr << "usage: mock_router [FIRST_TOKEN [TOKEN_INTERVAL]], such as 50ms 10ms\n";
    return 2;
  }
  const baton::testing::MockRouter router(options);
  std::cout << router.address() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  return 0;
}
