# Flags per file of src/device/cpu: a file that ends in _TIER.c is compiled for that tier's instruction sets.
file(GLOB avx2 CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*_avx2.c)
file(GLOB avx512 CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*_avx512.c)
file(GLOB amx CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*_amx.c)
# With sanitizers -O3 would take minutes for the kernels, and so would UBSan's checks of pointers beside those of ASan,
# or ASan's own in line.
set(optimise -O3)
if(QUERN_SANITIZE)
  set(optimise -O1 -fno-var-tracking -fno-sanitize=null,alignment,object-size,pointer-overflow)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND optimise --param=asan-instrumentation-with-call-threshold=0)
  endif()
endif()
if(QUERN_FUZZ) # no target runs a kernel, and clang takes ten minutes for one that is instrumented
  set(optimise -O1 -fno-sanitize=all)
endif()
file(GLOB plain CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*.c)
list(REMOVE_ITEM plain ${avx2} ${avx512} ${amx})
set_source_files_properties(${plain} PROPERTIES COMPILE_OPTIONS "${optimise}")
set(for_avx2 ${optimise} ${isa_avx2})
set(for_avx512 ${optimise} ${isa_avx512})
set(for_amx ${optimise} ${isa_amx})
set_source_files_properties(${avx2} PROPERTIES COMPILE_OPTIONS "${for_avx2}")
set_source_files_properties(${avx512} PROPERTIES COMPILE_OPTIONS "${for_avx512}")
set_source_files_properties(${amx} PROPERTIES COMPILE_OPTIONS "${for_amx}")

include(cmake/cuda.cmake)
