# One object library per folder of src/, in order of dependency: a layer sees only those before it.
# A layer that has no file yet is skipped.
add_library(quern_flags INTERFACE)
target_include_directories(quern_flags INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(quern_flags INTERFACE QUERN_VERSION="${PROJECT_VERSION}")
target_link_libraries(quern_flags INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})

# The architecture and its vector tiers, from the lowest up. A file NAME_ARCHITECTURE.c or NAME_TIER.c is compiled for that
# architecture alone.
set(tiers_x86 avx2 avx512 amx)
set(tiers_arm64 neon dotprod i8mm)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(QUERN_ARCH arm64)
  set(others x86 ${tiers_x86})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(QUERN_ARCH x86)
  set(others arm64 ${tiers_arm64})
else()
  message(FATAL_ERROR "quern runs on x86-64 and ARM64, not on ${CMAKE_SYSTEM_PROCESSOR}")
endif()
set(QUERN_TIERS ${tiers_${QUERN_ARCH}})
list(JOIN others "|" QUERN_OTHERS)

set(QUERN_BELOW "") # the layers so far, for the next one and for its tests

function(quern_layer name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.c)
  list(FILTER sources EXCLUDE REGEX "/(tool/main|run/api(_[a-z]+)?|comm/mpi/part)\\.c$")
  list(FILTER sources EXCLUDE REGEX "_(${QUERN_OTHERS})\\.c$")
  if(NOT sources)
    return()
  endif()
  add_library(quern_${name} STATIC ${sources})
  target_link_libraries(quern_${name} PUBLIC ${QUERN_BELOW} ${ARGN} quern_flags)
  set(QUERN_BELOW quern_${name} ${QUERN_BELOW} PARENT_SCOPE)
  set(QUERN_UPTO_${name} quern_${name} ${QUERN_BELOW} CACHE INTERNAL "")
endfunction()

# The compiler's flags of each vector tier of this architecture, isa_TIER: those of its rows and of the tiers below it.
set(isa_table ${PROJECT_SOURCE_DIR}/src/base/isa_rows_${QUERN_ARCH}.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${isa_table})
file(STRINGS ${isa_table} isa_rows REGEX "^ISA\\(")
foreach(row IN LISTS isa_rows)
  string(REGEX MATCH "^ISA\\(([a-z0-9]+), \"([a-z0-9.+-]+)\"," matched "${row}")
  list(APPEND isa_own_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
endforeach()
foreach(tier ${QUERN_TIERS})
  list(APPEND isa_all ${isa_own_${tier}})
  if(QUERN_ARCH STREQUAL "arm64")
    set(isa_${tier} -march=${isa_own_${tier}})
  else()
    list(TRANSFORM isa_all PREPEND -m OUTPUT_VARIABLE isa_${tier})
  endif()
endforeach()

# Decoders and encoders are loops over blocks, the same to the last bit on every machine.
file(GLOB codec CONFIGURE_DEPENDS src/codec/decode*.c src/codec/encode*.c src/codec/search*.c)
set(codec_options "$<$<NOT:$<CONFIG:Debug>>:-O3>;-ffp-contract=off;-Wno-psabi")
set_source_files_properties(${codec} PROPERTIES COMPILE_OPTIONS "${codec_options}")
if(QUERN_ARCH STREQUAL "x86")
  set_source_files_properties(src/codec/search_avx2.c PROPERTIES COMPILE_OPTIONS "${codec_options};${isa_avx2}")
  set_source_files_properties(src/codec/search_avx512.c PROPERTIES COMPILE_OPTIONS
                              "${codec_options};${isa_avx512};-mprefer-vector-width=512")
endif()
quern_layer(base)
quern_layer(codec)
quern_layer(comm)
quern_layer(device)
include(cmake/device.cmake)
quern_layer(format lib_jansson)
quern_layer(hub lib_jansson lib_curl)
quern_layer(lang lib_jansson lib_pcre2 lib_utf8proc)
quern_layer(media lib_jpeg lib_png lib_webp)
quern_layer(model lib_jansson)
quern_layer(quant)
quern_layer(run)
quern_layer(save lib_sqlite)
include(cmake/page.cmake)
set_source_files_properties(src/serve/asset.c PROPERTIES OBJECT_DEPENDS "${page_files}"
                            COMPILE_DEFINITIONS QUERN_ASSETS="${page_out}/assets.inc")
quern_layer(serve lib_jansson lib_event lib_event_tls lib_ssl lib_z)
quern_layer(tool lib_edit)

if(EXISTS ${PROJECT_SOURCE_DIR}/src/tool/main.c)
  add_executable(quern src/tool/main.c)
  target_link_libraries(quern PRIVATE ${QUERN_BELOW} quern_flags)
  target_link_options(quern PRIVATE -pie)
  set_target_properties(quern PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  install(TARGETS quern RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  # The same without kernels for GPUs, for the small container image, and for the wheel, where it takes those of the library: its
  # own blob.c comes before the layer's.
  if(QUERN_STATIC AND QUERN_HAS_KERNELS)
    add_executable(quern-cpu src/tool/main.c src/device/cuda/blob.c)
    target_compile_definitions(quern-cpu PRIVATE QUERN_KERNELS_BESIDE)
    target_link_libraries(quern-cpu PRIVATE ${QUERN_BELOW} quern_flags)
    target_link_options(quern-cpu PRIVATE -pie)
    install(TARGETS quern-cpu RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program-cpu)
  endif()
endif()

# Manual pages and completions, written by the program; not with sanitizers, where nobody installs.
if(TARGET quern AND NOT QUERN_SANITIZE)
  set(pages ${PROJECT_BINARY_DIR}/pages)
  add_custom_command(OUTPUT ${pages}/quern.fish
    COMMAND ${CMAKE_COMMAND} "-DQUERN=${CMAKE_CROSSCOMPILING_EMULATOR};$<TARGET_FILE:quern>" -DOUT=${pages} -P ${PROJECT_SOURCE_DIR}/cmake/pages.cmake
    DEPENDS quern ${PROJECT_SOURCE_DIR}/cmake/pages.cmake COMMENT "Manual pages" VERBATIM)
  add_custom_target(quern_pages ALL DEPENDS ${pages}/quern.fish)
  install(DIRECTORY ${pages}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
  install(FILES ${pages}/quern.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME quern
          COMPONENT program)
  install(FILES ${pages}/_quern DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT program)
  install(FILES ${pages}/quern.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
endif()

# What calls MPI, where Open MPI is there: loaded when mpirun has started several ranks (src/comm/mpi.h).
pkg_check_modules(mpi QUIET IMPORTED_TARGET ompi-c)
if(mpi_FOUND AND NOT QUERN_STATIC AND NOT CMAKE_CROSSCOMPILING)
  add_library(quern_mpi MODULE src/comm/mpi/part.c)
  target_link_libraries(quern_mpi PRIVATE PkgConfig::mpi)
  target_include_directories(quern_mpi PRIVATE ${PROJECT_SOURCE_DIR}/src)
  set_target_properties(quern_mpi PROPERTIES OUTPUT_NAME quern-mpi LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  install(TARGETS quern_mpi LIBRARY DESTINATION lib/quern COMPONENT program)
endif()

# The library: every layer up to run in one shared object that shows only what include/ declares.
if(TARGET quern_run)
  file(GLOB api CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/run/api*.c
                                  ${PROJECT_SOURCE_DIR}/src/device/cuda/public*.c)
  add_library(libquern SHARED ${api})
  set_target_properties(libquern PROPERTIES OUTPUT_NAME quern VERSION ${PROJECT_VERSION} SOVERSION 1
                        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_libraries(libquern PRIVATE quern_run quern_flags)
  target_link_options(libquern PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/libquern.map)
  if(QUERN_STATIC)
    # Archives of distributions are made for programs: they refer to data of the C library directly, as a shared object
    # cannot. Such objects are stdin, for jansson's message texts (the library reads no standard input), and stderr.
    target_sources(libquern PRIVATE ${PROJECT_SOURCE_DIR}/cmake/standard_streams.c)
    target_link_options(libquern PRIVATE -Wl,--wrap=stdin,--wrap=stderr,--gc-sections -Wl,--exclude-libs,ALL)
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/quern.pc.in ${PROJECT_BINARY_DIR}/quern.pc @ONLY)
  install(TARGETS libquern LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
  install(FILES ${PROJECT_SOURCE_DIR}/include/quern.h ${PROJECT_SOURCE_DIR}/include/quern_gpu.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
  install(FILES ${PROJECT_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
endif()
