# find_package(mlpool CONFIG) makes the target mlpool::mlpool. CMAKE_PREFIX_PATH has the folder above this one.
if(NOT TARGET mlpool::mlpool)
  get_filename_component(_mlpool "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
  add_library(mlpool::mlpool SHARED IMPORTED)
  set_target_properties(mlpool::mlpool PROPERTIES IMPORTED_LOCATION "${_mlpool}/libmlpool.so"
    IMPORTED_NO_SONAME TRUE INTERFACE_INCLUDE_DIRECTORIES "${_mlpool}/include")
endif()
