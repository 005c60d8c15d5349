package millstream.spark;

import java.util.List;
import org.apache.spark.JobArtifactSet;
import org.apache.spark.JobArtifactState;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Hands the Arrow batches of tasks to Spark as columns.
 *
 * <p>Spark's adapter copies each row, with all columns, before a query sees it. The columns of a batch
 * are read by the compiled query itself.
 */
final class ColumnarReaders implements PartitionReaderFactory {
  private static final long serialVersionUID = 1;

  private final UserDefinedPythonDataSource source;
  private final byte[] function;
  private final StructType columns;
  private final String timeZone;
  private final boolean largeTypes;
  private final Map<String, String> settings;
  private final Option<String> artifacts;

  private ColumnarReaders(
      UserDefinedPythonDataSource source, byte[] function, StructType columns, SQLConf conf) {
    this.source = source;
    this.function = function;
    this.columns = columns;
    this.timeZone = conf.sessionLocalTimeZone();
    this.largeTypes = conf.arrowUseLargeVarTypes();
    this.settings = ArrowPythonRunner.getPythonRunnerConfMap(conf);
    Option<JobArtifactState> state = JobArtifactSet.getCurrentJobArtifactState();
    this.artifacts = state.isEmpty() ? Option.empty() : Option.apply(state.get().uuid());
  }

  /** Return the batch with readers of columns, or as it is where Spark's runner is another one. */
  static Batch of(Batch rows, UserDefinedPythonDataSource source, PythonDataSourceReadInfo info,
      StructType columns) {
    ColumnarReaders readers;
    try {
      readers = new ColumnarReaders(source, info.func(), columns, SQLConf.get());
      readers.runner(null);
    } catch (LinkageError another) {
      return rows;
    }
    return new Batch() {
      @Override
      public InputPartition[] planInputPartitions() {
        return rows.planInputPartitions();
      }

      @Override
      public PartitionReaderFactory createReaderFactory() {
        return readers;
      }
    };
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    throw new UnsupportedOperationException("records are read by columns");
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    return new Reader((PythonInputPartition) partition);
  }

  private ArrowPythonRunner runner(Map<String, SQLMetric> metrics) {
    PythonFunction read = source.createPythonFunction(function);
    ChainedPythonFunctions chained = new ChainedPythonFunctions(seq(read));
    StructType input =
        new StructType().add("struct", UserDefinedPythonDataSource.readInputSchema());
    return new ArrowPythonRunner(
        seq(new Tuple2<ChainedPythonFunctions, Object>(chained, 0L)),
        PythonEvalType.SQL_MAP_ARROW_ITER_UDF(),
        new int[][] {{0}},
        input,
        timeZone,
        largeTypes,
        settings,
        metrics == null ? PythonCustomMetric.pythonMetrics() : metrics,
        artifacts,
        Option.empty());
  }

  private static <T> Seq<T> seq(T only) {
    return CollectionConverters.asScala(List.of(only)).toSeq();
  }

  /** The batches of one task. */
  private final class Reader implements PartitionReader<ColumnarBatch> {
    private final Map<String, SQLMetric> metrics = PythonCustomMetric.pythonMetrics();
    private final Iterator<ColumnarBatch> batches;

    Reader(PythonInputPartition partition) {
      InternalRow row = new GenericInternalRow(new Object[] {partition.pickedPartition()});
      InternalRow wrapped = new GenericInternalRow(new Object[] {row});
      Iterator<InternalRow> rows = CollectionConverters.asScala(List.of(wrapped)).iterator();
      batches =
          runner(metrics)
              .compute(
                  CollectionConverters.asScala(List.of(rows)).iterator(),
                  TaskContext.getPartitionId(),
                  TaskContext.get());
    }

    @Override
    public boolean next() {
      return batches.hasNext();
    }

    @Override
    public ColumnarBatch get() {
      ColumnarBatch batch = batches.next();
      ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
      ColumnVector[] vectors = new ColumnVector[columns.size()];
      for (int i = 0; i < vectors.length; i++) {
        vectors[i] = struct.getChild(i);
      }
      return new ColumnarBatch(vectors, batch.numRows());
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      java.util.Map<String, Object> values = new java.util.HashMap<>();
      CollectionConverters.asJava(metrics).forEach((name, metric) -> values.put(name, metric.value()));
      Map<String, Object> taken = Map.from(CollectionConverters.asScala(values));
      return source.createPythonTaskMetrics(taken);
    }

    @Override
    public void close() {
      // The worker ends with its task: Spark closes its connection then.
    }
  }
}
