# Flags per file of src/device/cpu: a file that ends in _TIER.c is compiled for that tier's instruction sets.
# With sanitizers -O3 would take minutes for the kernels, and so would UBSan's checks of pointers beside those of ASan.
set(optimise -O3)
if(QUERN_SANITIZE)
  set(optimise -O1 -fno-var-tracking -fno-sanitize=null,alignment,object-size,pointer-overflow)
endif()
if(QUERN_FUZZ) # no target runs a kernel, and clang takes ten minutes for one that is instrumented
  set(optimise -O1 -fno-sanitize=all)
endif()
file(GLOB panels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/matmul_*_*.c)
file(GLOB plain CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*.c)
set_source_files_properties(${plain} PROPERTIES COMPILE_OPTIONS "${optimise}")
foreach(tier ${QUERN_TIERS})
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*_${tier}.c)
  set(for_${tier} ${optimise} -ffp-contract=fast ${isa_${tier}})
  set_source_files_properties(${files} PROPERTIES COMPILE_OPTIONS "${for_${tier}}")
endforeach()
# ASan's checks are calls in the largest of these files, products by panels: in line they would take twice as long to compile.
# Everywhere else they are in line: the tests run three times as fast.
if(QUERN_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  set_property(SOURCE ${panels} APPEND PROPERTY COMPILE_OPTIONS --param=asan-instrumentation-with-call-threshold=0)
endif()

include(cmake/cuda.cmake)
