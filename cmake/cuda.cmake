# The CUDA kernels: every src/device/cuda/*.cu becomes a fat binary, which blob.c takes into the program.
# Without nvcc the program is built all the same, and works on the CPU.
# Fat binaries are the same for every architecture of the host: QUERN_CUDA_FATBINS takes those of another build.
set(QUERN_CUDA_FATBINS "" CACHE PATH "a folder of fat binaries, instead of nvcc")
if(QUERN_CUDA AND NOT QUERN_CUDA_FATBINS)
  find_program(QUERN_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
endif()
set(dir "")
if(QUERN_CUDA AND QUERN_NVCC AND NOT QUERN_CUDA_FATBINS)
  # A list of compute capabilities ("80;90a"); empty: that of the card at hand, else 90a.
  set(QUERN_CUDA_ARCHS "" CACHE STRING "compute capabilities to build kernels for")
  set(archs ${QUERN_CUDA_ARCHS})
  if(NOT archs)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE archs ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REPLACE "\n" ";" archs "${archs}")
    string(REPLACE "." "" archs "${archs}")
    list(REMOVE_DUPLICATES archs)
    if(NOT archs MATCHES "^[0-9;]+$")
      set(archs 90)
    endif()
    string(REGEX REPLACE "(^|;)90(;|$)" "\\190a\\2" archs "${archs}")
  endif()
  set(codes "")
  foreach(a ${archs})
    if(a MATCHES "^ptx(.*)$")
      list(APPEND codes -gencode arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
    else()
      list(APPEND codes -gencode arch=compute_${a},code=sm_${a})
    endif()
  endforeach()
  # Line tables are for profilers and sanitizers; they hold paths and dates, which what is given to people has not, and two thirds
  # of the bytes. Names of static symbols have a hash of the file's path: there, of one that is the same in every checkout.
  set(paths -lineinfo)
  if(QUERN_STATIC)
    set(paths -Xcicc --orig_src_path_name=/quern.cu)
  endif()
  set(dir ${PROJECT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${dir})
  message(STATUS "CUDA kernels for ${archs} (${QUERN_NVCC})")
elseif(QUERN_CUDA AND QUERN_CUDA_FATBINS)
  get_filename_component(dir ${QUERN_CUDA_FATBINS} ABSOLUTE)
  message(STATUS "CUDA kernels from ${dir}")
elseif(QUERN_CUDA)
  message(STATUS "nvcc not found: no CUDA kernels in this build; it works on the CPU")
endif()
if(dir)
  file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/*.cu)
  set(fatbins "")
  foreach(cu ${kernels})
    get_filename_component(name ${cu} NAME_WE)
    if(NOT QUERN_CUDA_FATBINS)
      add_custom_command(OUTPUT ${dir}/${name}.fatbin
        COMMAND ${QUERN_NVCC} -fatbin -O3 -std=c++17 ${codes} -I${PROJECT_SOURCE_DIR}/src ${paths}
                -MD -MF ${dir}/${name}.d -o ${dir}/${name}.fatbin ${cu}
        DEPENDS ${cu} DEPFILE ${dir}/${name}.d COMMENT "CUDA ${name}" VERBATIM)
    endif()
    list(APPEND fatbins ${dir}/${name}.fatbin)
  endforeach()
  add_custom_target(quern_cuda_kernels DEPENDS ${fatbins})
  add_dependencies(quern_device quern_cuda_kernels)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/device/cuda/blob.c PROPERTIES
    COMPILE_DEFINITIONS QUERN_CUDA_KERNELS="${dir}" OBJECT_DEPENDS "${fatbins}")
endif()
set(QUERN_HAS_KERNELS ${dir})

# The device test and the benchmark of the card: base and device alone, so that they build where there is a GPU and
# nothing else.
foreach(program check bench split experts state)
  if(EXISTS ${PROJECT_SOURCE_DIR}/test/gpu/${program}.c)
    add_executable(gpu_${program} EXCLUDE_FROM_ALL test/gpu/${program}.c test/gpu/rig.c)
    target_link_libraries(gpu_${program} PRIVATE quern_device quern_base quern_flags)
  endif()
endforeach()
