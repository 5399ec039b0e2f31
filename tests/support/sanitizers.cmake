# What the sanitizer builds need beyond compiler flags. Included by the root CMakeLists.txt; does
# nothing without BATON_SANITIZE.
#
# baton_sanitizer_support is linked into every test and binary. ctest gets the options by an included
# script that sets its own environment, so that they reach every test and every process that a test
# starts, however the test was declared. An allocation that is too large returns null, as it does
# without a sanitizer: callers turn that into a status.
add_library(baton_sanitizer_support INTERFACE)
if(NOT BATON_SANITIZE)
  return()
endif()

set(suppressions ${PROJECT_SOURCE_DIR}/tests/support)
set(script ${PROJECT_BINARY_DIR}/sanitizer_environment.cmake)
# addr2line reads what this compiler writes; the llvm-symbolizer on the path may be of an older LLVM, and
# suppressions by function need symbols.
find_program(BATON_ADDR2LINE addr2line REQUIRED)
if(BATON_SANITIZE MATCHES "thread")
  add_library(baton_tsan_sync OBJECT ${suppressions}/tsan_sync.cc)
  target_link_libraries(baton_tsan_sync PRIVATE baton_options)
  # The object by name: an object library does not pass its files on through an interface library.
  target_link_libraries(baton_sanitizer_support
    INTERFACE $<TARGET_OBJECTS:baton_tsan_sync> ${CMAKE_DL_LIBS})
  file(WRITE ${script} "set(ENV{TSAN_OPTIONS} \"allocator_may_return_null=1 \
ignore_noninstrumented_modules=1 \
suppressions=${suppressions}/tsan.supp external_symbolizer_path=${BATON_ADDR2LINE} \$ENV{TSAN_OPTIONS}\")\n")
else()
  file(WRITE ${script} "set(ENV{ASAN_OPTIONS} \"allocator_may_return_null=1 detect_stack_use_after_return=1 \
external_symbolizer_path=${BATON_ADDR2LINE} \$ENV{ASAN_OPTIONS}\")
set(ENV{LSAN_OPTIONS} \"suppressions=${suppressions}/lsan.supp print_suppressions=0 \
external_symbolizer_path=${BATON_ADDR2LINE} \$ENV{LSAN_OPTIONS}\")
set(ENV{UBSAN_OPTIONS} \"suppressions=${suppressions}/ubsan.supp print_stacktrace=1 \
external_symbolizer_path=${BATON_ADDR2LINE} \$ENV{UBSAN_OPTIONS}\")\n")
endif()
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY TEST_INCLUDE_FILES ${script})
