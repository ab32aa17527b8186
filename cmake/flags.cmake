# Flags for all of our own code. The program must run on any x86-64 or ARM64: instruction sets beyond the
# baseline are switched on per file, by the kernel table of src/device/cpu.
add_compile_options(-Wall -Wextra -Wformat=2 -Wvla -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef
                    -fno-strict-overflow -fstack-protector-strong -fno-math-errno)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-fstack-clash-protection)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    # no fused multiply-add but in the kernels, as on x86-64: plain code gives the same numbers on both
    add_compile_options(-mbranch-protection=standard -ffp-contract=off)
  else()
    add_compile_options(-fcf-protection=full)
  endif()
endif()
if(QUERN_WERROR)
  add_compile_options(-Werror)
endif()
if(QUERN_STATIC) # what is given to people: the same bytes wherever the source is
  file(RELATIVE_PATH up ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR}) # as ccache names files below its base_dir
  add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -ffile-prefix-map=${up}=)
endif()
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_C_FLAGS_RELEASE "-O2")
set(CMAKE_C_FLAGS_DEBUG "-O1 -g -fno-omit-frame-pointer")

if(QUERN_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
elseif(QUERN_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread)
  add_link_options(-fsanitize=thread)
elseif(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
endif()
if(QUERN_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
add_link_options(-Wl,-z,relro,-z,now)
