# Flags per file of src/device/cpu: a file that ends in _TIER.c is compiled for that instruction set.
file(GLOB avx2 CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*_avx2.c)
file(GLOB avx512 CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*_avx512.c)
set_source_files_properties(${avx2} PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c;-mbmi2")
set_source_files_properties(${avx512} PROPERTIES COMPILE_OPTIONS
  "-O3;-mavx2;-mfma;-mf16c;-mbmi2;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni")

include(cmake/cuda.cmake)
# The vector tiers are used as soon as their kernels are there.
if(avx2 MATCHES "vector_avx2" AND avx512 MATCHES "vector_avx512")
  target_compile_definitions(quern_device PRIVATE QUERN_VECTOR_KERNELS)
endif()
