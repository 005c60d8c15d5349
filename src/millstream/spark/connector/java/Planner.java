package millstream.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A Python process on the driver that plans reads; one per interpreter, for as long as Java runs.
 *
 * <p>Spark's adapter starts a process per plan, and its imports take longer than a small query. A request
 * is one line of JSON, and so is its answer. The process ends when Java closes its input.
 */
final class Planner {
  static final ObjectMapper JSON = new ObjectMapper();
  private static final Map<String, Planner> PLANNERS = new HashMap<>();

  private final ProcessBuilder builder;
  private Process process;
  private Writer input;
  private BufferedReader output;

  private Planner(ProcessBuilder builder) {
    this.builder = builder;
  }

  /** The planner gave no plan: Spark's own way is taken instead, and raises what is wrong. */
  static final class Refused extends Exception {
    private static final long serialVersionUID = 1;

    Refused(String reason) {
      super(reason);
    }
  }

  /** Rows that are known without a read. */
  static final class LocalRows implements LocalScan {
    private final StructType schema;
    private final InternalRow[] rows;

    LocalRows(StructType schema, InternalRow[] rows) {
      this.schema = schema;
      this.rows = rows;
    }

    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public InternalRow[] rows() {
      return rows;
    }

    @Override
    public String description() {
      return "millstream: from the metadata of the logs";
    }
  }

  static Planner of(UserDefinedPythonDataSource source) {
    PythonFunction function = source.dataSourceCls();
    synchronized (PLANNERS) {
      String key = function.pythonExec() + function.envVars();
      return PLANNERS.computeIfAbsent(key, unused -> new Planner(process(function)));
    }
  }

  private static ProcessBuilder process(PythonFunction function) {
    ProcessBuilder builder =
        new ProcessBuilder(function.pythonExec(), "-m", "millstream.spark.connector.planner");
    Map<String, String> environment = builder.environment();
    environment.putAll(function.envVars());
    String own = environment.getOrDefault("PYTHONPATH", "");
    String spark = PythonUtils.sparkPythonPath();
    environment.put("PYTHONPATH", own.isEmpty() ? spark : spark + File.pathSeparator + own);
    builder.redirectError(ProcessBuilder.Redirect.INHERIT);
    return builder;
  }

  static ObjectNode request(CaseInsensitiveStringMap options, StructType schema) {
    ObjectNode request = JSON.createObjectNode();
    ObjectNode given = request.putObject("options");
    options.asCaseSensitiveMap().forEach(given::put);
    if (schema != null) {
      request.put("schema", schema.json());
    }
    return request;
  }

  String schema(CaseInsensitiveStringMap options) throws Refused {
    return ask("schema", request(options, null)).get("schema").asText();
  }

  /** Make sure that the planner runs, and that it applies the conditions of this request. */
  void ready(ObjectNode request) throws Refused {
    ask("ready", request);
  }

  PythonDataSourceReadInfo plan(ObjectNode request, MillstreamTable table) throws Refused {
    JsonNode answer = ask("plan", snapshotted(request, table));
    table.note(request, answer.get("snapshot").asText());
    Base64.Decoder decoder = Base64.getDecoder();
    List<byte[]> partitions = new ArrayList<>();
    answer.get("partitions").forEach(text -> partitions.add(decoder.decode(text.asText())));
    byte[] function = decoder.decode(answer.get("function").asText());
    return new PythonDataSourceReadInfo(
        function, CollectionConverters.asScala(partitions).toSeq());
  }

  LocalRows aggregate(ObjectNode request, StructType schema, MillstreamTable table) throws Refused {
    JsonNode answer = ask("aggregate", snapshotted(request, table));
    table.note(request, answer.get("snapshot").asText());
    List<InternalRow> rows = new ArrayList<>();
    for (JsonNode row : answer.get("rows")) {
      Object[] values = new Object[schema.size()];
      for (int i = 0; i < values.length; i++) {
        JsonNode value = row.get(i);
        if (schema.apply(i).dataType().equals(DataTypes.StringType)) {
          values[i] = UTF8String.fromString(value.asText());
        } else if (schema.apply(i).dataType().equals(DataTypes.IntegerType)) {
          values[i] = value.asInt();
        } else {
          values[i] = value.isNull() ? null : (Object) value.asLong();
        }
      }
      rows.add(new GenericInternalRow(values));
    }
    return new LocalRows(schema, rows.toArray(new InternalRow[0]));
  }

  private static ObjectNode snapshotted(ObjectNode request, MillstreamTable table) {
    return request.put("snapshot", table.snapshot(request));
  }

  private synchronized JsonNode ask(String operation, ObjectNode request) throws Refused {
    JsonNode answer;
    try {
      String line = JSON.writeValueAsString(request.put("operation", operation)) + "\n";
      try {
        answer = exchange(line);
      } catch (IOException died) {
        stop();
        answer = exchange(line); // by a new process
      }
    } catch (IOException error) {
      stop();
      throw new Refused(String.valueOf(error.getMessage()));
    }
    if (answer.has("error")) {
      throw new Refused(answer.get("error").asText());
    }
    return answer;
  }

  private JsonNode exchange(String question) throws IOException {
    start();
    input.write(question);
    input.flush();
    String line = output.readLine();
    if (line == null) {
      throw new IOException("the planner ended");
    }
    return JSON.readTree(line);
  }

  private void start() throws IOException {
    if (process != null && process.isAlive()) {
      return;
    }
    process = builder.start();
    input = new OutputStreamWriter(process.getOutputStream(), StandardCharsets.UTF_8);
    output =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
  }

  private void stop() {
    if (process != null) {
      process.destroy();
      process = null;
    }
  }
}
